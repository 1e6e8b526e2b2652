"""Logs of attempts that run, for those who follow them; once an attempt has ended its log is an artifact."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, insert, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from jobs.task import LogChunk


def follow(connection: Connection, at: datetime, attempt: str, for_s: float) -> None:
    """Have a log fetched for so long from now on, if the attempt runs."""
    columns = tables.followed_logs.c
    connection.execute(delete(tables.followed_logs).where(columns.attempt == attempt))
    if _running(connection, [attempt]):
        until = at + timedelta(seconds=for_s)
        connection.execute(insert(tables.followed_logs).values(attempt=attempt, until=until))


_FOLLOWED = (
    select(tables.followed_logs.c.attempt)
    .where(tables.followed_logs.c.until > bindparam("at"))
    .order_by(tables.followed_logs.c.attempt)
)


def followed(connection: Connection, at: datetime) -> list[str]:
    """Return the attempts whose logs somebody follows."""
    return list(connection.scalars(_FOLLOWED, {"at": at}))


def add(connection: Connection, chunks: Sequence[LogChunk]) -> None:
    """Store fetched parts, except those of attempts that have ended and those that are stored."""
    running = _running(connection, sorted({chunk.attempt for chunk in chunks}))
    columns = tables.log_chunks.c
    stored_keys = set()
    for part in parts(sorted(running)):
        stored = connection.execute(select(columns.attempt, columns.offset).where(columns.attempt.in_(part)))
        stored_keys |= {(row.attempt, row.offset) for row in stored}
    rows = [
        {"attempt": chunk.attempt, "offset": chunk.offset, "text": chunk.text}
        for chunk in chunks
        if chunk.attempt in running and chunk.text and (chunk.attempt, chunk.offset) not in stored_keys
    ]
    if rows:
        connection.execute(insert(tables.log_chunks), rows)


def _running(connection: Connection, attempts: Sequence[str]) -> set[str]:
    columns, running = tables.attempts.c, set()
    for part in parts(attempts):
        query = select(columns.id).where(columns.id.in_(part), columns.ended_at.is_(None)).order_by(columns.id)
        running |= set(connection.scalars(query.with_for_update()))
    return running


def log_chunks(database: Database, attempt: str, after_offset: int = -1, limit: int | None = None) -> list[LogChunk]:
    """Return the fetched parts of a log that begin after an offset, in order."""
    columns = tables.log_chunks.c
    query = select(tables.log_chunks).where(columns.attempt == attempt, columns.offset > after_offset)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(columns.offset).limit(limit))
        return [LogChunk(row.attempt, row.offset, row.text) for row in rows]
