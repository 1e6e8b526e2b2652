"""Reads and writes of pins: artifacts that users keep whatever happens to their jobs."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, insert, select

from db.connection.engine import Database
from db.schema import tables
from db.writes import changes
from db.writes.changes import ChangeAction


@dataclass(frozen=True)
class ArtifactPin:
    """A user's reason to keep an artifact."""

    sha256: str
    why: str
    pinned_by: str
    pinned_at: datetime


def pin(database: Database, sha256: str, why: str, pinned_by: str) -> None:
    """Pin an artifact; an earlier pin of it is replaced."""
    with database.writing() as connection:
        connection.execute(delete(tables.pins).where(tables.pins.c.sha256 == sha256))
        row = {"sha256": sha256, "why": why, "pinned_by": pinned_by, "pinned_at": datetime.now(UTC)}
        connection.execute(insert(tables.pins), [row])
        changes.record(connection, ChangeAction.PIN, sha256, why)


def unpin(database: Database, sha256: str) -> bool:
    """Unpin an artifact; returns whether it was pinned."""
    with database.writing() as connection:
        if not connection.execute(delete(tables.pins).where(tables.pins.c.sha256 == sha256)).rowcount:
            return False
        changes.record(connection, ChangeAction.UNPIN, sha256)
        return True


def pins(database: Database, prefix: str = "") -> list[ArtifactPin]:
    """Return all pins, or those whose digest has a prefix."""
    query = select(tables.pins).where(tables.pins.c.sha256.startswith(prefix.lower())).order_by(tables.pins.c.sha256)
    with database.reading() as connection:
        return [ArtifactPin(**row) for row in connection.execute(query).mappings()]
