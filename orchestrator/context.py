"""What most commands begin with: the settings, and an open database."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from db.engine import Database, open_database
from orchestrator.settings import Settings, from_environment, make_data_folder

if TYPE_CHECKING:
    from db.store import Store
    from workers.artifacts import ArtifactStore


@dataclass(frozen=True)
class Context:
    """One command's view of the world."""

    settings: Settings
    database: Database

    @property
    def artifacts(self) -> "ArtifactStore":
        """The files; raises StorageUnusable where they can't be had."""
        from workers.artifacts import ArtifactStore

        return ArtifactStore(self.settings.artifacts, self.settings.artifact_cache)

    @property
    def store(self) -> "Store":
        """Writing."""
        from db.store import Store

        return Store(self.database)


@contextmanager
def opened() -> Iterator[Context]:
    """Settings from the environment, data folder and database made when they are new."""
    settings = from_environment()
    make_data_folder(settings)
    with open_database(settings.database_url, create=True) as database:
        yield Context(settings, database)
