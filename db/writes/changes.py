"""The record of changes that move no task: who did what to what. Rows are only added.

Changes of tasks are events, which name their actors too.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import Connection, insert, select

from db.connection.engine import Database
from db.schema import tables


class ChangeAction(StrEnum):
    """What was done."""

    PIN = "pin"
    UNPIN = "unpin"
    GC = "gc"
    DRAIN = "drain"
    RESUME = "resume"
    QUARANTINE = "quarantine"
    RELEASE = "release"
    UP = "up"
    DOWN = "down"
    ADD_SCHEDULE = "add schedule"
    REMOVE_SCHEDULE = "remove schedule"
    PAUSE_SCHEDULE = "pause schedule"
    RESUME_SCHEDULE = "resume schedule"
    SET_TARGET = "set target"
    REMOVE_TARGET = "remove target"
    IMPORT = "import"
    REMOVE_IMPORT = "remove import"
    PRUNE = "prune"
    LOCK_TOOLCHAIN = "lock toolchain"
    CREATE_TOKEN = "create token"
    REVOKE_TOKEN = "revoke token"


@dataclass(frozen=True)
class Change:
    """A change, and who made it."""

    at: datetime
    actor: str  #: the user of the process
    database_user: str | None  #: the user of the database's session; none: SQLite has no users
    action: ChangeAction
    subject: str  #: what was changed
    detail: str


def record(connection: Connection, action: ChangeAction, subject: str, detail: str = "") -> None:
    """Record a change in the transaction that makes it."""
    row = {"at": datetime.now(UTC), "action": action, "subject": subject, "detail": detail}
    connection.execute(insert(tables.changes), [row])


def record_alone(database: Database, action: ChangeAction, subject: str, detail: str = "") -> None:
    """Record a change that was made outside of the database."""
    with database.writing() as connection:
        record(connection, action, subject, detail)


def changes(database: Database) -> list[Change]:
    """Return all changes, oldest first."""
    columns = tables.changes.c
    wanted = [columns[name] for name in Change.__dataclass_fields__]
    with database.reading() as connection:
        rows = connection.execute(select(*wanted).order_by(columns.id)).mappings()
        return [Change(**{**row, "action": ChangeAction(row["action"])}) for row in rows]
