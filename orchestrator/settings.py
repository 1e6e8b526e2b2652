"""Where things are: taken from the environment, with a default for each that needs no set-up.

HALOCTL_DATA          a folder for database, artifacts and logs; default: the user's data folder
HALOCTL_DATABASE_URL  sqlite:///FILE or postgresql+psycopg://...; default: a SQLite file in the data folder
HALOCTL_ARTIFACTS     the artifact store, a folder that all nodes of a cluster share; default: in the data folder
HALOCTL_RAY_ADDRESS   HOST:PORT of a Ray cluster for `haloctl head` to use; default: it starts one
HALOCTL_CPU_DEVICES   how many logical CPU devices a node has; default 8
"""

import os
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import StorageUnusable


@dataclass(frozen=True)
class Settings:
    """Where one user's haloctl keeps and finds things."""

    data: Path
    database_url: str
    ray_address: str | None
    artifacts: Path

    @property
    def cache(self) -> Path:
        """What can be found out again at any time."""
        return self.data / "cache"


def from_environment() -> Settings:
    """Read the variables; nothing is created."""
    given = os.environ.get("HALOCTL_DATA")
    data = Path(given).expanduser().absolute() if given else _default_data()
    url = os.environ.get("HALOCTL_DATABASE_URL") or f"sqlite:///{data / 'haloctl.db'}"
    shared = os.environ.get("HALOCTL_ARTIFACTS")
    artifacts = Path(shared).expanduser().absolute() if shared else data / "artifacts"
    return Settings(data, url, os.environ.get("HALOCTL_RAY_ADDRESS") or None, artifacts)


def _default_data() -> Path:
    from platformdirs import user_data_path

    return user_data_path("haloctl")


def make_data_folder(settings: Settings) -> None:
    """Create the data folder for this user alone; raises StorageUnusable where that can't be."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageUnusable(f"data folder {settings.data}", _how_to_mend(error)) from error
    if not os.access(settings.data, os.W_OK | os.X_OK):
        raise StorageUnusable(f"data folder {settings.data}", "it can't be written; set HALOCTL_DATA to one that can")


def _how_to_mend(error: OSError) -> str:
    return f"{error.strerror}; set HALOCTL_DATA to a folder that can be written"
