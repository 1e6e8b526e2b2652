"""What attempts were made of: for telling why one had to be made."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select

from db import tables
from db.engine import Database
from jobs.state import DONE

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


@dataclass(frozen=True)
class Freedom:
    """Whether earlier tasks' outputs may be taken over."""

    of_task: bool
    of_job: bool  #: for what of it is not measured
    fresh_stages: frozenset[str]  #: those of its job in which something must run


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


def freedom(database: Database, task: str) -> Freedom:
    """What a task, by its whole id, may take over."""
    tasks, jobs = tables.tasks.c, tables.jobs.c
    own = select(jobs.id, jobs.reuse.label("of_job"), tasks.reuse).join(tables.tasks, tasks.job == jobs.id)
    with database.reading() as connection:
        row = connection.execute(own.where(tasks.id == task)).one()
        fresh = connection.scalars(select(tasks.stage).where(tasks.job == row.id, tasks.reuse.is_(False)).distinct())
        return Freedom(row.reuse, row.of_job, frozenset(fresh))


def sent_back(database: Database, task: str) -> str | None:
    """What a done task, by its whole id, had to be done again for the last time, if it had to."""
    events = tables.events.c
    query = select(events.detail).where(events.task == task, events.was.in_(sorted(DONE)))
    with database.reading() as connection:
        found: str | None = connection.scalar(query.order_by(events.id.desc()).limit(1))
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
