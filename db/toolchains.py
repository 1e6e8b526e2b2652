"""What names of toolchains were resolved to: the newest lock of a name is the one in use."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, select, text, update

from db import tables
from db.engine import Database
from jobs.toolchains import Lock

MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True)
class KeptLock:
    """A lock, and what a node that built it told of it."""

    lock: Lock
    digest: str  #: the lock's
    compiler_flags: frozenset[str] | None  #: None: no node has told yet
    resolved_at: datetime


def keep(connection: Connection, at: datetime, lock: Lock, instead_of: str | None) -> KeptLock:
    """Have a name stand for a lock from now on, unless it has come to stand for another than `instead_of` (a digest)
    meanwhile; returns what it stands for."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE toolchains IN SHARE ROW EXCLUSIVE MODE"))
    columns = tables.toolchains.c
    now = current(connection, [lock.name]).get(lock.name)
    if now is not None and now.digest != instead_of:
        return now
    if now is not None:
        at = max(at, now.resolved_at + MOMENT)
    row = {
        **{name: getattr(lock, name) for name in ("name", "digest", "source", "is_over", "python")},
        "lines": list(lock.lines),
        "versions": dict(lock.versions),
        "resolved_at": at,
    }
    same = and_(columns.name == lock.name, columns.digest == lock.digest)
    if not connection.execute(update(tables.toolchains).where(same).values(row)).rowcount:
        built = select(columns.compiler_flags).where(columns.digest == lock.digest, columns.compiler_flags.is_not(None))
        flags = connection.scalar(built.limit(1))
        connection.execute(insert(tables.toolchains).values(row | {"compiler_flags": flags}))
    return current(connection, [lock.name])[lock.name]


def keep_flags(connection: Connection, flags: Mapping[str, Collection[str]]) -> None:
    """What the compilers of locks offer, by digest."""
    columns = tables.toolchains.c
    for digest, names in sorted(flags.items()):
        fresh = (columns.digest == digest, columns.compiler_flags.is_(None))
        connection.execute(update(tables.toolchains).where(*fresh).values(compiler_flags=sorted(names)))


def current(connection: Connection, names: Collection[str]) -> dict[str, KeptLock]:
    """By name, what it stands for; names that were never resolved are left out."""
    columns = tables.toolchains.c
    newest = (
        select(columns.name, func.max(columns.resolved_at).label("resolved_at"))
        .where(columns.name.in_(sorted(names)))
        .group_by(columns.name)
        .subquery()
    )
    same = and_(newest.c.name == columns.name, newest.c.resolved_at == columns.resolved_at)
    rows = connection.execute(select(tables.toolchains).join(newest, same).order_by(columns.digest))
    return {row.name: _kept(row) for row in rows}


def stamps(connection: Connection, names: Collection[str]) -> frozenset[tuple[Any, ...]]:
    """Equal as long as what `current` returns is."""
    columns = tables.toolchains.c
    has_flags = columns.compiler_flags.is_not(None)
    query = select(columns.name, columns.digest, columns.resolved_at, has_flags).where(columns.name.in_(sorted(names)))
    return frozenset(tuple(row) for row in connection.execute(query))


def all_current(database: Database) -> dict[str, KeptLock]:
    """What every name stands for that was ever resolved."""
    with database.reading() as connection:
        return current(connection, connection.scalars(select(tables.toolchains.c.name).distinct()).all())


def of_digest(database: Database, digest: str) -> KeptLock | None:
    """A lock that attempts ran under, in use or not; None where it is not known."""
    query = select(tables.toolchains).where(tables.toolchains.c.digest == digest).order_by(tables.toolchains.c.name)
    with database.reading() as connection:
        row = connection.execute(query.limit(1)).one_or_none()
    return None if row is None else _kept(row)


def _kept(row: Row[Any]) -> KeptLock:
    lock = Lock(row.name, tuple(row.lines), row.versions, row.python, row.is_over, row.source)
    flags = None if row.compiler_flags is None else frozenset(row.compiler_flags)
    return KeptLock(lock, row.digest, flags, row.resolved_at)
