"""Reads and writes of the locks that names of toolchains were resolved to; the newest lock of a name is in use."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, select, text, update

from db.connection.engine import Database
from db.schema import tables
from db.schema.values import MALFORMED
from db.writes import changes
from db.writes.changes import ChangeAction
from jobs.toolchains import Lock

TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class StoredLock:
    """A lock with what is known of it."""

    lock: Lock
    digest: str  #: the lock's
    compiler_flags: frozenset[str] | None  #: None: no node has built it yet
    resolved_at: datetime


def record_lock(connection: Connection, at: datetime, lock: Lock, instead_of: str | None) -> StoredLock:
    """Make a lock the current one of its name, and return the current one.

    Nothing changes if the current one is not the one with the digest `instead_of`: another process was first.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE toolchains IN SHARE ROW EXCLUSIVE MODE"))
    columns = tables.toolchains.c
    now = current(connection, [lock.name]).get(lock.name)
    if now is not None and now.digest != instead_of:
        return now
    if now is not None:
        at = max(at, now.resolved_at + TICK)
    row = {
        **{name: getattr(lock, name) for name in ("name", "digest", "source", "python")},
        "is_overlay": lock.is_over,
        "lines": list(lock.lines),
        "versions": dict(lock.versions),
        "resolved_at": at,
    }
    same = and_(columns.name == lock.name, columns.digest == lock.digest)
    if not connection.execute(update(tables.toolchains).where(same).values(row)).rowcount:
        built = select(columns.compiler_flags).where(columns.digest == lock.digest, columns.compiler_flags.is_not(None))
        flags = connection.scalar(built.limit(1))
        connection.execute(insert(tables.toolchains).values(row | {"compiler_flags": flags}))
    changes.record(connection, ChangeAction.LOCK_TOOLCHAIN, lock.name, lock.digest)
    return current(connection, [lock.name])[lock.name]


def record_compiler_flags(connection: Connection, flags: Mapping[str, Collection[str]]) -> None:
    """Record the flags of the locks' compilers, by the digests of the locks, where they are not known yet."""
    columns = tables.toolchains.c
    for digest, names in sorted(flags.items()):
        fresh = (columns.digest == digest, columns.compiler_flags.is_(None))
        connection.execute(update(tables.toolchains).where(*fresh).values(compiler_flags=sorted(names)))


def current(connection: Connection, names: Collection[str]) -> dict[str, StoredLock]:
    """Return the current locks by name; names that were never resolved are left out."""
    columns = tables.toolchains.c
    newest = (
        select(columns.name, func.max(columns.resolved_at).label("resolved_at"))
        .where(columns.name.in_(sorted(names)))
        .group_by(columns.name)
        .subquery()
    )
    same = and_(newest.c.name == columns.name, newest.c.resolved_at == columns.resolved_at)
    rows = connection.execute(select(tables.toolchains).join(newest, same).order_by(columns.digest))
    locks = {}
    for row in rows:
        with suppress(*MALFORMED):  # it is resolved anew
            locks[row.name] = _stored_lock(row)
    return locks


def versions(connection: Connection, names: Collection[str]) -> frozenset[tuple[Any, ...]]:
    """Return a value that is equal as long as the result of `current` is."""
    columns = tables.toolchains.c
    has_flags = columns.compiler_flags.is_not(None)
    query = select(columns.name, columns.digest, columns.resolved_at, has_flags).where(columns.name.in_(sorted(names)))
    return frozenset(tuple(row) for row in connection.execute(query))


def all_current(database: Database) -> dict[str, StoredLock]:
    """Return the current lock of every name that was ever resolved."""
    with database.reading() as connection:
        return current(connection, connection.scalars(select(tables.toolchains.c.name).distinct()).all())


def of_digest(database: Database, digest: str) -> StoredLock | None:
    """Return the lock with a digest, in use or not; None if it is unknown."""
    query = select(tables.toolchains).where(tables.toolchains.c.digest == digest).order_by(tables.toolchains.c.name)
    with database.reading() as connection:
        row = connection.execute(query.limit(1)).one_or_none()
    return None if row is None else _stored_lock(row)


def _stored_lock(row: Row[Any]) -> StoredLock:
    lock = Lock(row.name, tuple(row.lines), row.versions, row.python, row.is_overlay, row.source)
    flags = None if row.compiler_flags is None else frozenset(row.compiler_flags)
    return StoredLock(lock, row.digest, flags, row.resolved_at)
