"""The settings and the open database of a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from db.connection.engine import Database, open_database
from orchestrator.settings import Settings, from_environment, make_data_folder

if TYPE_CHECKING:
    from db.store import Store
    from workers.artifacts import ArtifactStore


@dataclass(frozen=True)
class Context:
    """What a command works with."""

    settings: Settings
    database: Database

    @property
    def artifacts(self) -> "ArtifactStore":
        """The artifact store, to be read. Raises StorageUnusable when it can't be."""
        return self._artifacts(is_written=False)

    @property
    def writable_artifacts(self) -> "ArtifactStore":
        """The artifact store, to be written too. Raises StorageUnusable when it can't be."""
        return self._artifacts(is_written=True)

    def _artifacts(self, *, is_written: bool) -> "ArtifactStore":
        from workers.artifacts import ArtifactStore

        return ArtifactStore(self.settings.artifacts, self.settings.artifact_cache, is_written=is_written)

    @property
    def store(self) -> "Store":
        """Writes to the database."""
        from db.store import Store

        return Store(self.database)


@contextmanager
def open_context() -> Iterator[Context]:
    """Read the settings from the environment and open the database; create it and the data folder if missing."""
    settings = from_environment()
    make_data_folder(settings)
    with open_database(settings.database_url, create=True) as database:
        yield Context(settings, database)
