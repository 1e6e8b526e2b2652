"""The rows that snapshots are made of: what of tasks and attempts can change, and what can't."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from db import tables
from db.filters import parts
from db.snapshot import Need
from db.values import pin_of, places_of
from jobs.state import ACTIVE, OPEN, POLICIES
from jobs.task import Resources

LIVE = sorted(OPEN | ACTIVE)
ELSEWHERE = sorted(kind for kind, policy in POLICIES.items() if policy.is_elsewhere_first)


class Moving(NamedTuple):
    """What of a task can change."""

    id: str
    job: str
    state: str
    epoch: int
    asked_epoch: int
    attempt: str | None
    waits_for: str | None
    is_stuck: bool


@dataclass(frozen=True)
class Fixed:
    """What of a task can't."""

    fields: Mapping[str, Any]  #: of its `OpenTask`
    likeness: str | None


@dataclass(frozen=True)
class FixedAttempt:
    """What of an attempt can't change while it runs."""

    fields: Mapping[str, Any]  #: of its `RunningAttempt`
    weight: float


def versions(connection: Connection) -> dict[str, int]:
    """Of the jobs that are not over."""
    tasks, columns = tables.tasks.c, tables.jobs.c
    live = select(tasks.job).where(tasks.state.in_(LIVE)).distinct()
    return {
        row.id: row.version
        for row in connection.execute(select(columns.id, columns.version).where(columns.id.in_(live)))
    }


def moving(connection: Connection, jobs: Sequence[str]) -> dict[str, dict[str, Moving]]:
    """By job and task."""
    columns = tables.tasks.c
    wanted = [columns[name] for name in Moving._fields]
    found: dict[str, dict[str, Moving]] = {job: {} for job in jobs}
    for part in parts(jobs):
        for row in connection.execute(select(*wanted).where(columns.job.in_(part))).all():
            found[row.job][row.id] = Moving._make(row)
    return found


def fixed(connection: Connection, jobs: Sequence[str]) -> dict[str, dict[str, Fixed]]:
    """By job and task, in the order of the plans."""
    tasks, columns = tables.tasks.c, tables.jobs.c
    query = (
        select(
            *(tasks.id, tasks.job, tasks.stage, tasks.subject, tasks.settings, tasks.needs, tasks.resources, tasks.pin),
            *(columns.submitted_at, columns.submitted_by, columns.timeout_s, columns.reuse, columns.priority),
            tasks.likeness,
        )
        .join(tables.jobs, columns.id == tasks.job)
        .where(tasks.job.in_(jobs))
        .order_by(tasks.id)
    )
    rows = connection.execute(query).all()
    stages = {row.id: row.stage for row in rows}
    found: dict[str, dict[str, Fixed]] = {}
    for row in rows:
        fields = dict(row._mapping)
        likeness = fields.pop("likeness")
        fields["needed"] = tuple(Need(need, stages[need]) for need in fields.pop("needs"))
        fields["resources"] = Resources(**row.resources)
        fields["pin"] = pin_of(row.pin)
        found.setdefault(row.job, {})[row.id] = Fixed(fields, likeness)
    return found


def failed(connection: Connection, tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By task, the nodes that failed it since it was asked for, those of a gang all."""
    columns = tables.attempts.c
    found: dict[str, dict[str, None]] = {}
    for part in parts(tasks):
        query = (
            select(columns.task, columns.places)
            .join(tables.tasks, tables.tasks.c.id == columns.task)
            .where(columns.task.in_(part), columns.epoch > tables.tasks.c.asked_epoch)
            .where(columns.is_counted, columns.failure_kind.in_(ELSEWHERE))
            .order_by(columns.task, columns.epoch)
        )
        for row in connection.execute(query):
            found.setdefault(row.task, {}).update(dict.fromkeys(place.node for place in places_of(row.places)))
    return {task: tuple(names) for task, names in found.items()}


def fixed_attempts(connection: Connection, attempts: Sequence[str]) -> dict[str, FixedAttempt]:
    """By id."""
    columns = tables.attempts.c
    wanted = (columns.id, columns.task, columns.epoch, columns.started_at, columns.timeout_s, columns.digest)
    query = select(*wanted, columns.places, columns.weight).where(columns.id.in_(attempts))
    found = {}
    for row in connection.execute(query):
        fields: dict[str, Any] = dict(row._mapping)
        fields["places"] = places_of(row.places)
        found[row.id] = FixedAttempt(fields, fields.pop("weight") or 0.0)
    return found


def ended_since(moment: datetime) -> Any:
    """What attempts had of the cluster, oldest end first."""
    columns = tables.attempts.c
    return (
        select(
            columns.started_at,
            columns.ended_at,
            columns.weight,
            tables.tasks.c.likeness,
            tables.jobs.c.submitted_by,
        )
        .join(tables.tasks, tables.tasks.c.id == columns.task)
        .join(tables.jobs, tables.jobs.c.id == tables.tasks.c.job)
        .where(columns.ended_at > moment)
        .order_by(columns.ended_at)
    )
