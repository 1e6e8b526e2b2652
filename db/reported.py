"""When reports were written, and what they need that no other reading gives."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import func, insert, select

from db import tables
from db.engine import Database
from db.filters import parts
from jobs.task import Artifact


def last_report(database: Database) -> datetime | None:
    """When the last one was written, if ever one was."""
    with database.reading() as connection:
        found: datetime | None = connection.scalar(select(func.max(tables.reports.c.at)))
        return found


def record_report(database: Database, at: datetime, made_by: str) -> None:
    """One was written."""
    with database.writing() as connection:
        connection.execute(insert(tables.reports).values(at=at, made_by=made_by))


def artifacts_of(database: Database, attempts: Sequence[str]) -> Mapping[str, list[Artifact]]:
    """By attempt, what each made."""
    columns = tables.artifacts.c
    found: dict[str, list[Artifact]] = defaultdict(list)
    with database.reading() as connection:
        for part in parts(sorted(set(attempts))):
            query = select(tables.artifacts).where(columns.attempt.in_(part)).order_by(columns.attempt, columns.name)
            for row in connection.execute(query):
                found[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
    return found


def log_tails(database: Database, attempts: Sequence[str]) -> Mapping[str, str]:
    """By attempt, the end of its log; those that have none are left out."""
    columns, found = tables.attempts.c, {}
    with database.reading() as connection:
        for part in parts(sorted(set(attempts))):
            for row in connection.execute(select(columns.id, columns.log_tail).where(columns.id.in_(part))):
                if row.log_tail:
                    found[row.id] = row.log_tail
    return found
