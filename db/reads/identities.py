"""Identities of attempts, to explain why a task had to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select

from db.connection.engine import Database
from db.schema import tables
from jobs.errors import NotFound
from jobs.state import DONE

SUCCEEDED = "succeeded"


@dataclass(frozen=True)
class AttemptIdentity:
    """An attempt, with the identity that determines its outputs."""

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
        """Return whether its outputs could be reused at a time."""
        return self.outcome == SUCCEEDED and self.ended_at is not None and self.ended_at <= at


@dataclass(frozen=True)
class ReusePolicy:
    """Whether a task may reuse the outputs of earlier tasks."""

    of_task: bool
    of_job: bool  #: for its stages that are not measured
    fresh_stages: frozenset[str]  #: those of its job in which something must run


def attempt_identity(database: Database, attempt: str) -> AttemptIdentity:
    """Return an attempt, by its whole id; raises NotFound."""
    with database.reading() as connection:
        row = connection.execute(_made().where(tables.attempts.c.id == attempt)).one_or_none()
    if row is None:
        raise NotFound("attempt", attempt)
    return AttemptIdentity(**row._mapping)


def earlier_attempts(database: Database, than: AttemptIdentity) -> list[AttemptIdentity]:
    """Return the attempts of the same stage that began before another, newest first."""
    attempts = tables.attempts.c
    query = _made().where(tables.tasks.c.stage == than.stage, attempts.started_at <= than.started_at)
    with database.reading() as connection:
        rows = connection.execute(query.where(attempts.id != than.id).order_by(attempts.started_at.desc()))
        return [AttemptIdentity(**row._mapping) for row in rows]


def reuse_policy(database: Database, task: str) -> ReusePolicy:
    """Return the reuse policy of a task, by its whole id."""
    tasks, jobs = tables.tasks.c, tables.jobs.c
    settings = select(jobs.id, jobs.reuse.label("of_job"), tasks.reuse).join(tables.tasks, tasks.job == jobs.id)
    with database.reading() as connection:
        row = connection.execute(settings.where(tasks.id == task)).one()
        fresh = connection.scalars(select(tasks.stage).where(tasks.job == row.id, tasks.reuse.is_(False)).distinct())
        return ReusePolicy(row.reuse, row.of_job, frozenset(fresh))


def remake_reason(database: Database, task: str) -> str | None:
    """Return why a done task, by its whole id, last had to run again; None if it never had to."""
    events = tables.events.c
    query = select(events.detail).where(events.task == task, events.from_state.in_(sorted(DONE)))
    with database.reading() as connection:
        detail: str | None = connection.scalar(query.order_by(events.id.desc()).limit(1))
    return detail


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
