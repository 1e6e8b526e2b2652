"""Reads and writes of terms: each time that a process becomes the leader, a new term starts."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, func, insert, select, update

from db.connection.engine import Database
from db.schema import tables


class LeaderKind(StrEnum):
    """The kind of process that leads."""

    HEAD = "head"  #: the daemon
    EMBEDDED = "embedded"  #: a command that drives its own job


@dataclass(frozen=True)
class Term:
    """One term of a leader."""

    id: int
    kind: LeaderKind
    host: str
    pid: int
    started_at: datetime
    ended_at: datetime | None  #: None: it leads, or was killed


def begin(connection: Connection, at: datetime, kind: LeaderKind, host: str, pid: int) -> int:
    """Start a term and return its number, which is higher than all others."""
    row = {"kind": kind, "host": host, "pid": pid, "started_at": at}
    key = connection.execute(insert(tables.terms).values(**row)).inserted_primary_key
    return int(key[0]) if key else 0


def end(connection: Connection, at: datetime, term: int) -> None:
    """Record that a term's leader has stopped, unless that is recorded."""
    columns = tables.terms.c
    connection.execute(update(tables.terms).where(columns.id == term, columns.ended_at.is_(None)).values(ended_at=at))


_NEWEST = select(func.max(tables.terms.c.id))


def newest(connection: Connection) -> int | None:
    """Return the number of the newest term; None if nobody ever led."""
    number: int | None = connection.scalar(_NEWEST)
    return number


def leader(database: Database) -> Term | None:
    """Return the newest term; None if nobody ever led."""
    columns = tables.terms.c
    with database.reading() as connection:
        row = connection.execute(select(tables.terms).order_by(columns.id.desc()).limit(1)).one_or_none()
    return None if row is None else Term(**{**row._mapping, "kind": LeaderKind(row.kind)})


def is_led_by_heads(database: Database) -> bool:
    """Return whether a head ever led: then commands do not run their own jobs."""
    query = select(tables.terms.c.id).where(tables.terms.c.kind == LeaderKind.HEAD).limit(1)
    with database.reading() as connection:
        return connection.scalar(query) is not None
