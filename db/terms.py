"""Who led, and who leads: each time that somebody becomes the leader there is a new term."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Connection, func, insert, select, update

from db import tables
from db.engine import Database


class LeaderKind(StrEnum):
    """What leads."""

    HEAD = "head"  #: the daemon
    EMBEDDED = "embedded"  #: a command that drives its own job


@dataclass(frozen=True)
class TermRow:
    """Once that somebody led."""

    id: int
    kind: LeaderKind
    host: str
    pid: int
    began_at: datetime
    ended_at: datetime | None  #: None: it leads, or was killed


def begin(connection: Connection, at: datetime, kind: LeaderKind, host: str, pid: int) -> int:
    """A term that is newer than every other."""
    row = {"kind": kind, "host": host, "pid": pid, "began_at": at}
    made = connection.execute(insert(tables.terms).values(**row)).inserted_primary_key
    return int(made[0]) if made else 0


def end(connection: Connection, at: datetime, term: int) -> None:
    """Say that its leader has stopped; nothing where that was said before."""
    columns = tables.terms.c
    connection.execute(update(tables.terms).where(columns.id == term, columns.ended_at.is_(None)).values(ended_at=at))


_NEWEST = select(func.max(tables.terms.c.id))


def newest(connection: Connection) -> int | None:
    """The term that counts; None when nobody ever led."""
    found: int | None = connection.scalar(_NEWEST)
    return found


def leader(database: Database) -> TermRow | None:
    """The newest term; None when nobody ever led."""
    columns = tables.terms.c
    with database.reading() as connection:
        row = connection.execute(select(tables.terms).order_by(columns.id.desc()).limit(1)).one_or_none()
    return None if row is None else TermRow(**{**row._mapping, "kind": LeaderKind(row.kind)})


def is_led_by_heads(database: Database) -> bool:
    """Whether a head ever led: then commands do not drive their own jobs."""
    query = select(tables.terms.c.id).where(tables.terms.c.kind == LeaderKind.HEAD).limit(1)
    with database.reading() as connection:
        return connection.scalar(query) is not None
