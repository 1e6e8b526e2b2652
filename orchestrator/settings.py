"""Settings from the environment; every one has a default that needs no set-up.

HALOCTL_DATA               a folder for database, artifacts and logs; default: the user's data folder
HALOCTL_DATABASE_URL       sqlite:///FILE or postgresql+psycopg://...; default: a SQLite file in the data folder
HALOCTL_DATABASE_URL_FILE  a file with that URL, readable by its owner alone: for a URL with a password
HALOCTL_ARTIFACTS          the artifact store, which all nodes of a cluster see: a folder, or a URL that fsspec knows
                           (s3://, az://, gs://, ...; never with a secret in it); default: in the data folder
HALOCTL_CACHE_GB           what a node keeps of a store at a URL; default: a quarter of its disk
HALOCTL_RAY_ADDRESS        HOST:PORT of a Ray cluster for `haloctl head` to use; default: it starts one
HALOCTL_TOOLCHAINS         a file with the site's own toolchains; default: there are none
HALOCTL_COMPILER_FLAGS     names of further flags of iree-compile that job files may set, with blanks between them;
                           default: those that jobs.compiler_flags lists
HALOCTL_LOG_JSON           1: heads, nodes and agents log objects of JSON, one in each line
HALOCTL_CPU_DEVICES        how many logical CPU devices a node has; default 8
HALOCTL_STAGE_VARIABLES    names of further environment variables that stages of a node see; default: those that
                           jobs.environment_variables lists
HALOCTL_STAGE_USER         the user that stages run as, where a node runs as root; default: the node's own
HALOCTL_STAGE_WRITABLE     further folders that stages may write to, separated by colons; default: there are none
HALOCTL_SERVER             the address of a `haloctl web` that the Python client asks; default: it opens the database
HALOCTL_TOKEN_FILE         a file with the token for it, readable by its owner alone; or HALOCTL_TOKEN with the token
HALOCTL_TRUSTED_PROXY  HEADER:ROLE: the header in which a proxy names users to `haloctl web`, and their role; default:
                           none is believed
HALOCTL_MAX_FOREIGN_CPU_PERCENT  how much of a node's processors may compute for others during a measurement, or any 5 s
                           of it, before it counts as disturbed; default 10 where devices are the host's cores, 50 with
                           GPUs
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import BadSetting, StorageUnusable
from workers.artifacts import Location, locations

URL_FILE = "HALOCTL_DATABASE_URL_FILE"
TOOLCHAINS_VARIABLE = "HALOCTL_TOOLCHAINS"
FLAGS_VARIABLE = "HALOCTL_COMPILER_FLAGS"
FLAG = re.compile(r"--[A-Za-z0-9][\w-]*", re.ASCII)
OTHERS = 0o077  #: the bits of a file's mode that let others use it


@dataclass(frozen=True)
class Settings:
    """Where haloctl keeps and finds its data."""

    data: Path
    database_url: str
    ray_address: str | None
    artifacts: Location
    toolchains: Path | None = None  #: the site's own
    compiler_flags: frozenset[str] = frozenset()  #: names that the site's job files may set besides haloctl's

    @property
    def cache(self) -> Path:
        """A folder for what can be computed again."""
        return self.data / "cache"

    @property
    def artifact_cache(self) -> Path:
        """This machine's copies of artifacts in a store at a URL."""
        return self.cache / "artifacts"


def from_environment() -> Settings:
    """Read the settings; nothing is created."""
    given = os.environ.get("HALOCTL_DATA")
    data = _path("HALOCTL_DATA", given) if given else _default_data()
    url = _database_url() or f"sqlite:///{data / 'haloctl.db'}"
    shared = os.environ.get(locations.VARIABLE)
    artifacts = locations.parse(shared) if shared else data / "artifacts"
    rows = os.environ.get(TOOLCHAINS_VARIABLE)
    toolchains = _path(TOOLCHAINS_VARIABLE, rows) if rows else None
    ray_address = os.environ.get("HALOCTL_RAY_ADDRESS") or None
    return Settings(data, url, ray_address, artifacts, toolchains, _compiler_flags())


def _path(variable: str, text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # `~name` of a user that there is not
        raise BadSetting(variable, f"{text} can't be a path: {error}") from error


def _compiler_flags() -> frozenset[str]:
    names = os.environ.get(FLAGS_VARIABLE, "").split()
    for name in names:
        if not FLAG.fullmatch(name):
            raise BadSetting(FLAGS_VARIABLE, f"{name!r} is not the name of a flag, such as --iree-opt-level")
    return frozenset(names)


def _database_url() -> str | None:
    url, file = os.environ.get("HALOCTL_DATABASE_URL"), os.environ.get(URL_FILE)
    if not file:
        return url
    if url:
        raise BadSetting(URL_FILE, "HALOCTL_DATABASE_URL is set as well; unset one of the two")
    return _read_secret(_path(URL_FILE, file))


def _read_secret(file: Path) -> str:
    """Return a file's one line. Raises BadSetting when other users can read the file."""
    try:
        with file.open() as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read().strip()
    except (OSError, UnicodeError) as error:
        raise BadSetting(URL_FILE, f"{file} can't be read: {getattr(error, 'strerror', 'it is no text')}") from error
    if mode & OTHERS:
        raise BadSetting(URL_FILE, f"{file} is accessible to other users (mode {mode:04o}); run chmod 600 {file}")
    if not text:
        raise BadSetting(URL_FILE, f"{file} is empty; it should hold the database's URL")
    return text


def _default_data() -> Path:
    from platformdirs import user_data_path

    return user_data_path("haloctl")


def make_data_folder(settings: Settings) -> None:
    """Create the data folder for this user alone. Raises StorageUnusable."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageUnusable(f"data folder {settings.data}", _remedy(error)) from error
    if not os.access(settings.data, os.W_OK | os.X_OK):
        raise StorageUnusable(f"data folder {settings.data}", "it can't be written; set HALOCTL_DATA to one that can")


def _remedy(error: OSError) -> str:
    return f"{error.strerror}; set HALOCTL_DATA to a folder that can be written"
