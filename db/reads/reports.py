"""Jobs, tasks, attempts and events, as commands and reports show them; prefixes of ids are accepted."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, or_, select

from db.connection.engine import Database
from db.schema import ids, tables
from db.schema.filters import matching
from db.schema.values import commands_of, devices_of, failure_of, inputs_of, own_failure_of, places_of, processes_of
from db.writes.logs import log_chunks as log_chunks
from db.writes.terms import Term as Term
from db.writes.terms import is_led_by_heads as is_led_by_heads
from db.writes.terms import leader as leader
from jobs.errors import NotFound
from jobs.state import ACTIVE, OPEN, Failure, FailureKind, JobState, TaskState, job_state
from jobs.task import Artifact, Command, Device, Place, Process


@dataclass(frozen=True)
class JobRow:
    """A job, with the counts of its tasks."""

    id: str
    name: str
    model: str
    submitted_by: str
    submitted_at: datetime
    state: JobState
    counts: Mapping[TaskState, int]  #: of its tasks; states that none is in are left out
    unschedulable: int  #: tasks that wait for what the cluster does not have
    schedule: str | None = None  #: that submitted it
    imported_from: str | None = None  #: the file that it was read from

    @property
    def tasks(self) -> int:
        """The number of its tasks."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class TaskRow:
    """A task, with the outcome of its latest attempt, or of the attempt whose outputs it reuses."""

    id: str
    job: str
    stage: str
    subject: str
    target: str  #: empty when the stage does not depend on it
    state: TaskState
    needs: tuple[str, ...]
    after: str | None  #: the task that a gate compares it with: it began when that had ended
    settings: Mapping[str, Any]
    digest: str | None
    waits_for: str | None  #: only while it is open
    is_unschedulable: bool
    blocked_by: str | None
    lost_artifacts: str | None  #: its files that were lost, and that it makes again
    attempt: str | None  #: its latest; of a cached task, the earlier task's
    attempts: int  #: its own
    cached_from: str | None  #: the earlier task
    node: str | None
    devices: tuple[Device, ...]
    started_at: datetime | None
    ended_at: datetime | None
    duration_s: float | None  #: by its node's clock; None: it runs, or nobody knows
    failure: Failure | None  #: of a failed task, and of a queued one that is tried again
    has_failed_before: bool  #: it failed before it could run: not an attempt of it
    toolchain: str
    warnings: tuple[str, ...]
    again_after: FailureKind | None  #: how the attempt before the latest ended, if that is why there is a latest


@dataclass(frozen=True)
class AttemptRow:
    """One attempt of a task, with all that is needed to repeat it by hand."""

    id: str
    task: str
    stage: str
    epoch: int
    node: str
    devices: tuple[Device, ...]
    places: tuple[Place, ...]  #: the same by node; more than one where it was a gang's
    commands: tuple[Command, ...]
    inputs: Mapping[str, tuple[Artifact, ...]]  #: by stage
    digest: str
    toolchain: str  #: its name
    lock: str  #: the digest of what that stood for; empty: what haloctl is installed in
    versions: Mapping[str, str]
    host_cpu: str
    environment: Mapping[str, str]
    timeout_s: float
    started_at: datetime
    ended_at: datetime | None
    duration_s: float | None  #: by its node's clock; None: it runs, or nobody knows
    outcome: str | None  #: succeeded, failed or cancelled; None while it runs
    failure: Failure | None
    warnings: tuple[str, ...]
    processes: tuple[Process, ...]
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True)
class EventRow:
    """One change of state."""

    id: int
    at: datetime
    job: str
    task: str | None  #: None: the job's submission
    attempt: str | None
    from_state: TaskState | None
    to_state: TaskState | None
    detail: str


def jobs(
    database: Database, limit: int | None = None, toolchain: str | None = None, after: str | None = None
) -> list[JobRow]:
    """Return the latest jobs, newest first.

    With `toolchain`, a name or a pattern, those with variants that use it; with `after`, a job's whole id, those that
    follow it in this order. Raises NotFound for a job that there is not.
    """
    columns, cells = tables.jobs.c, tables.cells.c
    newest = select(columns.id).order_by(columns.submitted_at.desc(), columns.id).limit(limit)
    with database.reading() as connection:
        if after is not None:
            newest = newest.where(_follows(connection, after))
        if wanted := matching(connection, cells.toolchain, toolchain):
            newest = newest.where(select(cells.job).where(cells.job == columns.id, *wanted).exists())
        return _job_rows(connection, columns.id.in_(newest))


def _follows(connection: Connection, job_id: str) -> ColumnElement[bool]:
    """Return the condition that a job follows another in the order of `jobs`."""
    columns = tables.jobs.c
    at = connection.scalar(select(columns.submitted_at).where(columns.id == job_id))
    if at is None:
        raise NotFound("job", job_id)
    return or_(columns.submitted_at < at, and_(columns.submitted_at == at, columns.id > job_id))


def job(database: Database, prefix: str) -> JobRow:
    """Return a job by a prefix of its id; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _job_rows(connection, tables.jobs.c.id == ids.find_job(connection, prefix))[0]


def job_spec(database: Database, job_id: str) -> dict[str, Any]:
    """Return a job's job file, with every default filled in."""
    with database.reading() as connection:
        spec: dict[str, Any] = connection.execute(
            select(tables.jobs.c.spec).where(tables.jobs.c.id == job_id)
        ).scalar_one()
    return spec


def _job_rows(connection: Connection, condition: ColumnElement[bool]) -> list[JobRow]:
    columns, tasks = tables.jobs.c, tables.tasks.c
    query = (
        select(
            columns.id,
            columns.name,
            columns.model,
            columns.submitted_by,
            columns.submitted_at,
            columns.schedule,
            columns.imported_from,
            tasks.state,
            tasks.is_unschedulable,
            func.count().label("tasks"),
        )
        .join(tables.tasks, tasks.job == columns.id)
        .where(condition)
        .group_by(columns.id, tasks.state, tasks.is_unschedulable)
        .order_by(columns.submitted_at.desc(), columns.id)
    )
    return [_job_row(list(rows)) for _, rows in groupby(connection.execute(query), key=attrgetter("id"))]


def _job_row(rows: list[Any]) -> JobRow:
    """Return a job from its rows, one for each state of its tasks and whether they are unschedulable."""
    first, counts = rows[0], Counter[TaskState]()
    for row in rows:
        counts[TaskState(row.state)] += row.tasks
    return JobRow(
        id=first.id,
        name=first.name,
        model=first.model,
        submitted_by=first.submitted_by,
        submitted_at=first.submitted_at,
        state=job_state([(TaskState(row.state), row.is_unschedulable) for row in rows]),
        counts=counts,
        unschedulable=sum(row.tasks for row in rows if row.is_unschedulable),
        schedule=first.schedule,
        imported_from=first.imported_from,
    )


_LIVE = select(tables.tasks.c.id).where(
    tables.tasks.c.job == bindparam("job"), tables.tasks.c.state.in_(sorted(OPEN | ACTIVE))
)


def is_over(database: Database, job_id: str) -> bool:
    """Return whether nothing of a job runs or waits any more; cheaper to query than its state."""
    with database.reading() as connection:
        return connection.execute(_LIVE.limit(1), {"job": job_id}).first() is None


def tasks(database: Database, job_id: str) -> list[TaskRow]:
    """Return a job's tasks in the order of the plan."""
    with database.reading() as connection:
        return _task_rows(connection, tables.tasks.c.job == job_id)


def open_tasks(database: Database, limit: int) -> list[TaskRow]:
    """Return tasks that run, then tasks that wait, at most this many of each, by their ids."""
    columns = tables.tasks.c
    with database.reading() as connection:
        return [
            row
            for states in (ACTIVE, OPEN)
            for row in _task_rows(
                connection,
                columns.id.in_(
                    select(columns.id).where(columns.state.in_(sorted(states))).order_by(columns.id).limit(limit)
                ),
            )
        ]


def task(database: Database, prefix: str) -> TaskRow:
    """Return a task by a prefix of its id; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _task_rows(connection, tables.tasks.c.id == ids.find_task(connection, prefix))[0]


_TOLD = (
    *("id", "job", "stage", "subject", "target", "state", "needs", "settings", "waits_for", "is_unschedulable"),
    *("blocked_by", "attempt", "epoch", "failure", "toolchain", "lost_artifacts", "after"),
)


def _task_rows(connection: Connection, condition: ColumnElement[bool]) -> list[TaskRow]:
    latest, before, tasks = tables.attempts.c, tables.attempts.alias("before"), tables.tasks.c
    is_before = and_(before.c.task == tasks.id, before.c.epoch == tasks.epoch - 1, before.c.epoch > tasks.base_epoch)
    query = (
        select(
            *(tasks[name] for name in _TOLD),
            before.c.failure_kind.label("again_after"),
            latest.task.label("made_by"),
            latest.digest,
            latest.node,
            latest.places,
            latest.started_at,
            latest.ended_at,
            latest.duration_s,
            latest.failure_kind,
            latest.failure_message,
            latest.log_tail,
            latest.warnings,
        )
        .join(tables.attempts, latest.id == tasks.attempt, isouter=True)
        .join(before, is_before, isouter=True)
        .where(condition)
        .order_by(tables.tasks.c.id)
    )
    return [_task_row(row) for row in connection.execute(query)]


def _task_row(row: Any) -> TaskRow:
    return TaskRow(
        id=row.id,
        job=row.job,
        stage=row.stage,
        subject=row.subject,
        target=row.target,
        state=TaskState(row.state),
        needs=tuple(row.needs),
        after=row.after,
        settings=row.settings,
        digest=row.digest,
        waits_for=row.waits_for,
        is_unschedulable=row.is_unschedulable,
        blocked_by=row.blocked_by,
        lost_artifacts=row.lost_artifacts,
        attempt=row.attempt,
        attempts=row.epoch,
        cached_from=row.made_by if row.state == TaskState.CACHED else None,
        node=row.node,
        devices=devices_of(row.places),
        started_at=row.started_at,
        ended_at=row.ended_at,
        duration_s=row.duration_s,
        failure=own_failure_of(row.failure) or failure_of(row.failure_kind, row.failure_message, row.log_tail),
        has_failed_before=row.failure is not None,
        toolchain=row.toolchain,
        warnings=tuple(row.warnings or ()),
        again_after=FailureKind(row.again_after) if row.again_after else None,
    )


def attempts(database: Database, task_id: str) -> list[AttemptRow]:
    """Return a task's own attempts, oldest first."""
    with database.reading() as connection:
        return _attempt_rows(connection, tables.attempts.c.task == task_id)


def attempt(database: Database, prefix: str) -> AttemptRow:
    """Return an attempt by a prefix of its id; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _attempt_rows(connection, tables.attempts.c.id == ids.find_attempt(connection, prefix))[0]


def _attempt_rows(connection: Connection, condition: ColumnElement[bool]) -> list[AttemptRow]:
    columns, files = tables.attempts.c, tables.artifacts.c
    query = select(tables.attempts, tables.tasks.c.stage).join(tables.tasks).where(condition).order_by(columns.epoch)
    artifact_query = select(tables.artifacts).join(tables.attempts).where(condition).order_by(files.attempt, files.name)
    artifacts: dict[str, list[Artifact]] = defaultdict(list)
    for row in connection.execute(artifact_query):
        artifacts[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
    return [_attempt_row(row, tuple(artifacts[row.id])) for row in connection.execute(query)]


def _attempt_row(row: Any, artifacts: tuple[Artifact, ...]) -> AttemptRow:
    return AttemptRow(
        id=row.id,
        task=row.task,
        stage=row.stage,
        epoch=row.epoch,
        node=row.node,
        devices=devices_of(row.places),
        places=places_of(row.places),
        commands=commands_of(row.commands),
        inputs=inputs_of(row.inputs),
        digest=row.digest,
        toolchain=row.toolchain,
        lock=row.lock,
        versions=row.versions,
        host_cpu=row.host_cpu,
        environment=row.environment,
        timeout_s=row.timeout_s,
        started_at=row.started_at,
        ended_at=row.ended_at,
        duration_s=row.duration_s,
        outcome=row.outcome,
        failure=failure_of(row.failure_kind, row.failure_message, row.log_tail),
        warnings=tuple(row.warnings),
        processes=processes_of(row.processes),
        artifacts=artifacts,
    )


def events(
    database: Database, *, job: str | None = None, task: str | None = None, after: int = 0, limit: int | None = None
) -> list[EventRow]:
    """Return the state changes with ids above `after`, oldest first; `job` and `task` are whole ids."""
    columns = tables.events.c
    wanted = [column == value for column, value in ((columns.job, job), (columns.task, task)) if value is not None]
    query = select(tables.events).where(columns.id > after, *wanted).order_by(columns.id).limit(limit)
    with database.reading() as connection:
        return [_event_row(row) for row in connection.execute(query)]


def _event_row(row: Any) -> EventRow:
    return EventRow(
        id=row.id,
        at=row.at,
        job=row.job,
        task=row.task,
        attempt=row.attempt,
        from_state=TaskState(row.from_state) if row.from_state else None,
        to_state=TaskState(row.to_state) if row.to_state else None,
        detail=row.detail,
    )
