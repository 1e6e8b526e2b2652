"""Times of reports, and queries that only reports need."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import func, insert, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from jobs.task import Artifact


def last_report(database: Database) -> datetime | None:
    """Return when the last report was written; None if there was none."""
    with database.reading() as connection:
        at: datetime | None = connection.scalar(select(func.max(tables.reports.c.at)))
        return at


def record_report(database: Database, at: datetime, made_by: str) -> None:
    """Record that a report was written."""
    with database.writing() as connection:
        connection.execute(insert(tables.reports).values(at=at, made_by=made_by))


def artifacts_of(database: Database, attempts: Sequence[str]) -> Mapping[str, list[Artifact]]:
    """Return the artifacts of each attempt."""
    columns = tables.artifacts.c
    artifacts: dict[str, list[Artifact]] = defaultdict(list)
    with database.reading() as connection:
        for part in parts(sorted(set(attempts))):
            query = select(tables.artifacts).where(columns.attempt.in_(part)).order_by(columns.attempt, columns.name)
            for row in connection.execute(query):
                artifacts[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
    return artifacts


def log_tails(database: Database, attempts: Sequence[str]) -> Mapping[str, str]:
    """Return the end of the log of each attempt; attempts without one are left out."""
    columns, tails = tables.attempts.c, {}
    with database.reading() as connection:
        for part in parts(sorted(set(attempts))):
            for row in connection.execute(select(columns.id, columns.log_tail).where(columns.id.in_(part))):
                if row.log_tail:
                    tails[row.id] = row.log_tail
    return tails
