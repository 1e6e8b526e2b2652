"""Queries for the rows of snapshots: the columns of tasks and attempts that can change, and those that can't."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, select

from db.schema import tables
from db.schema.filters import IS_END, among, parts
from db.schema.values import MALFORMED, pin_of, places_of, resources_of
from db.snapshots.affinity import preferred_places
from db.snapshots.snapshot import NeededTask
from jobs.state import ACTIVE, OPEN, POLICIES, internal_failure
from jobs.task import Place, Resources

#: What stands for the columns of a task whose row is malformed.
DEFECTIVE: Mapping[str, Any] = {
    "settings": {},
    "needed": (),
    "after": None,
    "resources": Resources(),
    "timeout_s": 1.0,
    "submitted_at": datetime.fromtimestamp(0, UTC),
    "submitted_by": "",
}

LIVE = sorted(OPEN | ACTIVE)
ELSEWHERE = sorted(kind for kind, policy in POLICIES.items() if policy.is_elsewhere_first)


class TaskStatus(NamedTuple):
    """The columns of a task that can change."""

    id: str
    job: str
    state: str
    epoch: int
    base_epoch: int
    attempt: str | None
    waits_for: str | None
    is_unschedulable: bool
    lost_artifacts: str | None


@dataclass(frozen=True)
class TaskConstants:
    """The columns of a task that never change, and those of its job."""

    fields: Mapping[str, Any]  #: of `OpenTask`
    duration_key: str | None


@dataclass(frozen=True)
class AttemptConstants:
    """The columns of an attempt that do not change while it runs."""

    fields: Mapping[str, Any]  #: of `RunningAttempt`
    weight: float


_LIVE_JOBS = select(tables.tasks.c.job).where(tables.tasks.c.state.in_(LIVE)).distinct()
_VERSIONS = select(tables.jobs.c.id, tables.jobs.c.version).where(tables.jobs.c.id.in_(_LIVE_JOBS))
_SELECT_STATUSES = select(*(tables.tasks.c[name] for name in TaskStatus._fields))
_SELECT_STATUSES_OF_JOBS = _SELECT_STATUSES.where(among(tables.tasks.c.job))
_SELECT_CHANGED = _SELECT_STATUSES.where(
    tables.tasks.c.job == bindparam("job"), tables.tasks.c.version > bindparam("since")
)


def versions(connection: Connection) -> dict[str, int]:
    """Return the versions of the jobs that have not ended."""
    return {row.id: row.version for row in connection.execute(_VERSIONS)}


def statuses(connection: Connection, jobs: Sequence[str]) -> list[TaskStatus]:
    """Return the status of all tasks of some jobs."""
    return [row for part in parts(jobs) for row in _statuses(connection, _SELECT_STATUSES_OF_JOBS, {"ids": part})]


def changed_statuses(connection: Connection, job: str, since: int) -> list[TaskStatus]:
    """Return the status of the tasks of a job that changed after a version of it."""
    return _statuses(connection, _SELECT_CHANGED, {"job": job, "since": since})


def _statuses(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> list[TaskStatus]:
    return [TaskStatus._make(row) for row in connection.execute(query, values).all()]


_T, _J = tables.tasks.c, tables.jobs.c
#: What a task is known by, whatever becomes of its other columns.
_NAMES = (_T.id, _T.job, _T.stage, _T.subject, _T.toolchain, _T.reuse, _T.duration_key)
_CONSTANTS = (
    select(*_NAMES, _T.settings, _T.needs, _T.resources, _T.pin, _T.after)
    .add_columns(_J.submitted_at, _J.submitted_by, _J.timeout_s, _J.priority)
    .join(tables.jobs, _J.id == _T.job)
)


def task_constants(connection: Connection, jobs: Sequence[str]) -> dict[str, dict[str, TaskConstants]]:
    """Return the constants by job and task, in the order of the plans; a malformed row is a task with a defect."""
    rows = _constant_rows(connection, jobs)
    stages = {row["id"]: row["stage"] for row in rows}
    try:
        preferred = preferred_places(connection, jobs)
    except MALFORMED:  # they are no more than preferred
        preferred = {}
    constants: dict[str, dict[str, TaskConstants]] = {}
    for row in rows:
        fields = _fields(row, stages) | {"affinity": preferred.get(row["id"], ())}
        constants.setdefault(row["job"], {})[row["id"]] = TaskConstants(fields, row["duration_key"])
    return constants


def _constant_rows(connection: Connection, jobs: Sequence[str]) -> list[dict[str, Any]]:
    try:
        rows = connection.execute(_CONSTANTS.where(_T.job.in_(jobs)).order_by(_T.id)).mappings()
        return [dict(row) for row in rows]
    except MALFORMED:
        ids = connection.scalars(select(_T.id).where(_T.job.in_(jobs)).order_by(_T.id)).all()
        return [_constant_row(connection, task) for task in ids]


def _constant_row(connection: Connection, task: str) -> dict[str, Any]:
    """Return the row of one task; only its names and why, if the others can't be read."""
    try:
        return dict(connection.execute(_CONSTANTS.where(_T.id == task)).mappings().one())
    except MALFORMED as error:
        names = dict(connection.execute(select(*_NAMES).where(_T.id == task)).mappings().one())
        return {**names, "defect": internal_failure(error)}


def _fields(row: Mapping[str, Any], stages: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `OpenTask`; of a malformed row those of a task that can't do anything but fail."""
    names = {key: row[key] for key in ("id", "job", "stage", "subject", "toolchain", "reuse")}
    try:
        if "defect" in row:
            return {**names, **DEFECTIVE, "defect": row["defect"]}
        fields = {key: row[key] for key in ("settings", "after", "submitted_at", "submitted_by")}
        fields["needed"] = tuple(NeededTask(need, stages[need]) for need in row["needs"])
        fields["resources"] = resources_of(row["resources"])
        fields["pin"] = pin_of(row["pin"])
        fields["timeout_s"], fields["priority"] = float(row["timeout_s"]), int(row["priority"])
        if not isinstance(row["settings"], dict):
            raise TypeError(f"its settings are not a mapping: {str(row['settings'])[:100]}")
        if row["after"] is not None and row["after"] not in stages:
            raise LookupError(f"it starts after {row['after']}, which is not there")
        return {**names, **fields}
    except MALFORMED as error:
        return {**names, **DEFECTIVE, "defect": internal_failure(error)}


def failed_nodes(connection: Connection, tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, by task, the nodes that failed it since its submission or last retry; of a gang all."""
    columns = tables.attempts.c
    nodes: dict[str, dict[str, None]] = {}
    for part in parts(tasks):
        query = (
            select(columns.task, columns.places)
            .join(tables.tasks, tables.tasks.c.id == columns.task)
            .where(columns.task.in_(part), columns.epoch > tables.tasks.c.base_epoch)
            .where(columns.is_counted, columns.failure_kind.in_(ELSEWHERE))
            .order_by(columns.task, columns.epoch)
        )
        for row in connection.execute(query):
            nodes.setdefault(row.task, {}).update(dict.fromkeys(place.node for place in places_of(row.places)))
    return {task: tuple(names) for task, names in nodes.items()}


_ATTEMPT = ("id", "task", "epoch", "started_at", "timeout_s", "digest", "places", "weight")
_FIXED_ATTEMPTS = select(*(tables.attempts.c[name] for name in _ATTEMPT)).where(among(tables.attempts.c.id))


def attempt_constants(connection: Connection, attempts: Sequence[str]) -> dict[str, AttemptConstants]:
    """Return the constants of attempts by their ids."""
    constants = {}
    for row in connection.execute(_FIXED_ATTEMPTS, {"ids": attempts}):
        fields: dict[str, Any] = dict(row._mapping)
        fields["places"] = places_of(row.places)
        constants[row.id] = AttemptConstants(fields, fields.pop("weight") or 0.0)
    return constants


_PLACES = select(tables.attempts.c.id, tables.attempts.c.places).where(among(tables.attempts.c.id))


def places(connection: Connection, attempts: Sequence[str]) -> dict[str, tuple[Place, ...]]:
    """Return, by attempt, where it ran."""
    return {row.id: places_of(row.places) for row in connection.execute(_PLACES, {"ids": attempts})}


_ENDED = (
    select(*(tables.attempts.c[name] for name in ("started_at", "ended_at", "duration_s", "weight")))
    .add_columns(tables.tasks.c.duration_key, tables.jobs.c.submitted_by)
    .join(tables.tasks, tables.tasks.c.id == tables.attempts.c.task)
    .join(tables.jobs, tables.jobs.c.id == tables.tasks.c.job)
)
_ENDED_SINCE = _ENDED.where(tables.attempts.c.ended_at > bindparam("moment"))
_ENDED_AFTER = _ENDED.join(tables.events, tables.events.c.attempt == tables.attempts.c.id).where(
    tables.events.c.id > bindparam("event"), IS_END
)


def ended_since(connection: Connection, moment: datetime) -> Sequence[Any]:
    """Return how long attempts ran and what they held, for those that ended since a time."""
    return connection.execute(_ENDED_SINCE, {"moment": moment}).all()


def ended_after(connection: Connection, event: int) -> Sequence[Any]:
    """Return the same for attempts that ended after the event with this number."""
    return connection.execute(_ENDED_AFTER, {"event": event}).all()
