"""Where an artifact store is: a folder, or a URL that fsspec knows, in which there is never a secret."""

from pathlib import Path
from urllib.parse import urlsplit

from jobs.errors import BadSetting

VARIABLE = "HALOCTL_ARTIFACTS"
MARK = ".haloctl-store"  #: the file that only one store has
FROM_ENVIRONMENT = "keep it out, and give it in the variables of its own tools (AWS_*, AZURE_STORAGE_*, GOOGLE_*)"


Location = Path | str  #: a folder, or a URL


def parse(given: str) -> Location:
    """A folder's absolute path, or a URL; raises BadSetting for one that has a secret or a setting in it."""
    if "://" not in given:
        return Path(given).expanduser().absolute()
    protocol, _, rest = given.partition("://")
    if protocol == "file":
        return Path(rest).absolute()
    parts = urlsplit(given)
    if parts.query or parts.fragment:
        raise BadSetting(VARIABLE, f"a store's URL ends with its path, and this one goes on; {FROM_ENVIRONMENT}")
    if parts.password is not None:
        raise BadSetting(VARIABLE, f"there is a password in the URL; {FROM_ENVIRONMENT}")
    if not protocol or "::" in given or not parts.netloc + parts.path.strip("/"):
        raise BadSetting(VARIABLE, "should be a folder, or a URL such as s3://BUCKET/FOLDER or az://CONTAINER/FOLDER")
    return given.rstrip("/")


def folder_of(where: Location) -> Path | None:
    """The folder that a location is; None for a URL."""
    return where if isinstance(where, Path) else None if "://" in where else Path(where)
