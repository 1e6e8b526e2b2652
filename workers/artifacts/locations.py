"""The location of an artifact store: a folder, or a URL that fsspec knows, which must not contain a secret."""

from pathlib import Path
from urllib.parse import urlsplit

from jobs.errors import BadSetting

VARIABLE = "HALOCTL_ARTIFACTS"
MARK = ".haloctl-store"  #: the file with an id that only one store has
FROM_ENVIRONMENT = "remove it and set the variables of the store's own tools (AWS_*, AZURE_STORAGE_*, GOOGLE_*)"

Location = Path | str  #: a folder, or a URL


def parse(text: str) -> Location:
    """Return a folder's absolute path, or a URL; raises BadSetting for a URL with a secret or a setting in it."""
    if "://" not in text:
        return Path(text).expanduser().absolute()
    protocol, _, rest = text.partition("://")
    if protocol == "file":
        return Path(rest).absolute()
    parts = urlsplit(text)
    if parts.query or parts.fragment:
        raise BadSetting(VARIABLE, f"the URL has something behind its path; {FROM_ENVIRONMENT}")
    if parts.password is not None:
        raise BadSetting(VARIABLE, f"the URL has a password in it; {FROM_ENVIRONMENT}")
    if not protocol or "::" in text or not parts.netloc + parts.path.strip("/"):
        raise BadSetting(VARIABLE, "should be a folder, or a URL such as s3://BUCKET/FOLDER or az://CONTAINER/FOLDER")
    return text.rstrip("/")


def folder_of(where: Location) -> Path | None:
    """Return the folder that a location is; None for a URL."""
    return where if isinstance(where, Path) else None if "://" in where else Path(where)
