"""The rows that snapshots are made of: what of tasks and attempts can change, and what can't."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, select

from db import tables
from db.favoured import favoured
from db.filters import among, parts
from db.snapshot import Need
from db.values import pin_of, places_of
from jobs.state import ACTIVE, OPEN, POLICIES
from jobs.task import Place, Resources

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
    lost: str | None


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


_LIVE_JOBS = select(tables.tasks.c.job).where(tables.tasks.c.state.in_(LIVE)).distinct()
_VERSIONS = select(tables.jobs.c.id, tables.jobs.c.version).where(tables.jobs.c.id.in_(_LIVE_JOBS))
_MOVING = select(*(tables.tasks.c[name] for name in Moving._fields))
_MOVING_OF_JOBS = _MOVING.where(among(tables.tasks.c.job))
_MOVED = _MOVING.where(tables.tasks.c.job == bindparam("job"), tables.tasks.c.version > bindparam("since"))


def versions(connection: Connection) -> dict[str, int]:
    """Of the jobs that are not over."""
    return {row.id: row.version for row in connection.execute(_VERSIONS)}


def moving(connection: Connection, jobs: Sequence[str]) -> list[Moving]:
    """All of some jobs."""
    return [row for part in parts(jobs) for row in _moving(connection, _MOVING_OF_JOBS, {"ids": part})]


def moved(connection: Connection, job: str, since: int) -> list[Moving]:
    """What of a job changed after a version of it."""
    return _moving(connection, _MOVED, {"job": job, "since": since})


def _moving(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> list[Moving]:
    return [Moving._make(row) for row in connection.execute(query, values).all()]


def fixed(connection: Connection, jobs: Sequence[str]) -> dict[str, dict[str, Fixed]]:
    """By job and task, in the order of the plans."""
    tasks, columns = tables.tasks.c, tables.jobs.c
    query = (
        select(
            *(tasks.id, tasks.job, tasks.stage, tasks.subject, tasks.settings, tasks.needs, tasks.resources, tasks.pin),
            *(columns.submitted_at, columns.submitted_by, columns.timeout_s, columns.priority),
            *(tasks.toolchain, tasks.reuse, tasks.likeness, tasks.after),
        )
        .join(tables.jobs, columns.id == tasks.job)
        .where(tasks.job.in_(jobs))
        .order_by(tasks.id)
    )
    rows = connection.execute(query).all()
    stages = {row.id: row.stage for row in rows}
    spots = favoured(connection, jobs)
    found: dict[str, dict[str, Fixed]] = {}
    for row in rows:
        fields = dict(row._mapping)
        likeness = fields.pop("likeness")
        fields["needed"] = tuple(Need(need, stages[need]) for need in fields.pop("needs"))
        fields["resources"] = Resources(**row.resources)
        fields["pin"] = pin_of(row.pin)
        fields["favoured"] = spots.get(row.id, ())
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


_ATTEMPT = ("id", "task", "epoch", "started_at", "timeout_s", "digest", "places", "weight")
_FIXED_ATTEMPTS = select(*(tables.attempts.c[name] for name in _ATTEMPT)).where(among(tables.attempts.c.id))


def fixed_attempts(connection: Connection, attempts: Sequence[str]) -> dict[str, FixedAttempt]:
    """By id."""
    found = {}
    for row in connection.execute(_FIXED_ATTEMPTS, {"ids": attempts}):
        fields: dict[str, Any] = dict(row._mapping)
        fields["places"] = places_of(row.places)
        found[row.id] = FixedAttempt(fields, fields.pop("weight") or 0.0)
    return found


_PLACES = select(tables.attempts.c.id, tables.attempts.c.places).where(among(tables.attempts.c.id))


def places(connection: Connection, attempts: Sequence[str]) -> dict[str, tuple[Place, ...]]:
    """By attempt, where it ran."""
    return {row.id: places_of(row.places) for row in connection.execute(_PLACES, {"ids": attempts})}


_ENDED = (
    select(*(tables.attempts.c[name] for name in ("started_at", "ended_at", "weight")))
    .add_columns(tables.tasks.c.likeness, tables.jobs.c.submitted_by)
    .join(tables.tasks, tables.tasks.c.id == tables.attempts.c.task)
    .join(tables.jobs, tables.jobs.c.id == tables.tasks.c.job)
    .where(tables.attempts.c.ended_at > bindparam("moment"))
    .order_by(tables.attempts.c.ended_at)
)


def ended_since(connection: Connection, moment: datetime) -> Iterable[Any]:
    """What attempts had of the cluster, oldest end first."""
    return connection.execute(_ENDED, {"moment": moment})
