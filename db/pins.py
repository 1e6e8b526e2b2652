"""Files that people want to keep, whatever jobs come and go."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, insert, select

from db import tables
from db.engine import Database


@dataclass(frozen=True)
class Pin:
    """Why a file is kept."""

    sha256: str
    why: str
    pinned_by: str
    pinned_at: datetime


def pin(database: Database, sha256: str, why: str, pinned_by: str) -> None:
    """Keep a file; what was said of it before is replaced."""
    with database.writing() as connection:
        connection.execute(delete(tables.pins).where(tables.pins.c.sha256 == sha256))
        row = {"sha256": sha256, "why": why, "pinned_by": pinned_by, "pinned_at": datetime.now(UTC)}
        connection.execute(insert(tables.pins), [row])


def unpin(database: Database, sha256: str) -> bool:
    """Keep it for that reason no more; whether it was pinned."""
    with database.writing() as connection:
        return connection.execute(delete(tables.pins).where(tables.pins.c.sha256 == sha256)).rowcount > 0


def pins(database: Database, prefix: str = "") -> list[Pin]:
    """All there are, or those whose sha256 starts so."""
    query = select(tables.pins).where(tables.pins.c.sha256.startswith(prefix.lower())).order_by(tables.pins.c.sha256)
    with database.reading() as connection:
        return [Pin(**row) for row in connection.execute(query).mappings()]
