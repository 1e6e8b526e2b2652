"""What attempts were made of: for telling why one had to be made."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select

from db import tables
from db.engine import Database

SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class Made:
    """An attempt, with what its outputs follow from."""

    id: str
    task: str
    stage: str
    digest: str
    identity: Mapping[str, Any] | None  #: None: it ran before identities were kept
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None  #: succeeded, failed or cancelled; None while it runs
    failure_kind: str | None

    def had_succeeded(self, at: datetime) -> bool:
        """Whether its outputs were there to be taken over at a moment."""
        return self.outcome == SUCCEEDED and self.ended_at is not None and self.ended_at <= at


def made(database: Database, attempt: str) -> Made:
    """An attempt, by its whole id."""
    with database.reading() as connection:
        return Made(**connection.execute(_made().where(tables.attempts.c.id == attempt)).one()._mapping)


def made_earlier(database: Database, than: Made) -> list[Made]:
    """The attempts of the same stage that were begun before another, newest first."""
    attempts = tables.attempts.c
    query = _made().where(tables.tasks.c.stage == than.stage, attempts.started_at <= than.started_at)
    with database.reading() as connection:
        rows = connection.execute(query.where(attempts.id != than.id).order_by(attempts.started_at.desc()))
        return [Made(**row._mapping) for row in rows]


def reuses(database: Database, job: str) -> bool:
    """Whether a job's tasks may be taken over from earlier ones."""
    with database.reading() as connection:
        found: bool = connection.execute(select(tables.jobs.c.reuse).where(tables.jobs.c.id == job)).scalar_one()
    return found


def _made() -> Select[Any]:
    attempts = tables.attempts.c
    return select(
        attempts.id,
        attempts.task,
        tables.tasks.c.stage,
        attempts.digest,
        attempts.identity,
        attempts.started_at,
        attempts.ended_at,
        attempts.outcome,
        attempts.failure_kind,
    ).join(tables.tasks, tables.tasks.c.id == attempts.task)
