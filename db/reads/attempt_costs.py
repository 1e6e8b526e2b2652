"""What attempts cost: for how long each held its devices and cores, and how it ended."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.values import places_of
from jobs.task import Place


@dataclass(frozen=True)
class AttemptCost:
    """One attempt in a period, with what it held on each of its nodes."""

    user: str
    model: str
    stage: str
    job: str
    places: tuple[Place, ...]
    cores: int  #: on each node
    seconds: float  #: of the period
    outcome: str | None  #: None: it runs
    failure_kind: str | None


def attempt_costs(database: Database, since: datetime, now: datetime) -> list[AttemptCost]:
    """Return the attempts that ran at any time since a moment; of those that began before, only the time since."""
    jobs, tasks, attempts = tables.jobs.c, tables.tasks.c, tables.attempts.c
    times = (attempts.started_at, attempts.ended_at, attempts.duration_s)
    query = (
        select(
            *(jobs.submitted_by, jobs.model, tasks.stage, tasks.job, attempts.places, tasks.resources, *times),
            *(attempts.outcome, attempts.failure_kind),
        )
        .join(tables.tasks, tasks.id == attempts.task)
        .join(tables.jobs, jobs.id == tasks.job)
        .where(or_(attempts.ended_at.is_(None), attempts.ended_at >= since))
        .where(jobs.imported_from.is_(None))
    )
    with database.reading() as connection:
        return [_cost(row, since, now) for row in connection.execute(query)]


def _cost(row: Any, since: datetime, now: datetime) -> AttemptCost:
    held_s = (min(row.ended_at or now, now) - max(row.started_at, since)).total_seconds()
    is_timed = row.duration_s is not None and row.started_at >= since  # by a clock that never steps
    return AttemptCost(
        user=row.submitted_by,
        model=row.model,
        stage=row.stage,
        job=row.job,
        places=places_of(row.places),
        cores=row.resources.get("cpus", 0),
        seconds=max(0.0, row.duration_s if is_timed else held_s),
        outcome=row.outcome,
        failure_kind=row.failure_kind,
    )
