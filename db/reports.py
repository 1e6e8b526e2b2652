"""Reading for people: jobs, tasks, attempts, events. Ids may be given by their start."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select

from db import ids, tables
from db.engine import Database
from db.filters import matching
from db.logs import log_chunks as log_chunks
from db.terms import TermRow as TermRow
from db.terms import is_led_by_heads as is_led_by_heads
from db.terms import leader as leader
from db.values import commands_of, devices_of, failure_of, inputs_of, own_failure_of, places_of, processes_of
from jobs.state import ACTIVE, OPEN, Failure, FailureKind, JobState, TaskState, job_state
from jobs.task import Artifact, Command, Device, Place, Process


@dataclass(frozen=True)
class JobRow:
    """A job, and what its tasks add up to."""

    id: str
    name: str
    model: str
    submitted_by: str
    submitted_at: datetime
    state: JobState
    counts: Mapping[TaskState, int]  #: of its tasks; states that none is in are left out
    stuck: int  #: tasks that wait for what the cluster does not have
    schedule: str | None = None  #: that submitted it
    imported_from: str | None = None  #: the file that it was read from

    @property
    def tasks(self) -> int:
        """How many it has."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class TaskRow:
    """A task, with what its latest attempt (or the attempt that it took over) came to."""

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
    is_stuck: bool
    blocked_by: str | None
    lost: str | None  #: its files that were lost, and that it makes again
    attempt: str | None  #: its latest; of a cached task, the earlier task's
    attempts: int  #: its own
    cached_from: str | None  #: the earlier task
    node: str | None
    devices: tuple[Device, ...]
    started_at: datetime | None
    ended_at: datetime | None
    failure: Failure | None  #: of a failed task, and of a queued one that is tried again
    has_failed_before: bool  #: it failed before it could run: not an attempt of it
    toolchain: str
    warnings: tuple[str, ...]
    again_after: FailureKind | None  #: how the attempt before the latest ended, if that is why there is a latest


@dataclass(frozen=True)
class AttemptRow:
    """One try of a task, with all that is needed to do it again by hand."""

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
    was: TaskState | None
    became: TaskState | None
    detail: str


def jobs(database: Database, limit: int | None = None, toolchain: str | None = None) -> list[JobRow]:
    """The newest jobs, newest first; with `toolchain`, a name or a pattern, those that have variants under it."""
    columns, cells = tables.jobs.c, tables.cells.c
    newest = select(columns.id).order_by(columns.submitted_at.desc(), columns.id).limit(limit)
    with database.reading() as connection:
        if wanted := matching(connection, cells.toolchain, toolchain):
            newest = newest.where(select(cells.job).where(cells.job == columns.id, *wanted).exists())
        return _job_rows(connection, columns.id.in_(newest))


def job(database: Database, prefix: str) -> JobRow:
    """One job, by the start of its id; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _job_rows(connection, tables.jobs.c.id == ids.find_job(connection, prefix))[0]


def job_spec(database: Database, job_id: str) -> dict[str, Any]:
    """The job file that a job was made from, with every default filled in."""
    with database.reading() as connection:
        found: dict[str, Any] = connection.execute(
            select(tables.jobs.c.spec).where(tables.jobs.c.id == job_id)
        ).scalar_one()
    return found


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
            tasks.is_stuck,
            func.count().label("tasks"),
        )
        .join(tables.tasks, tasks.job == columns.id)
        .where(condition)
        .group_by(columns.id, tasks.state, tasks.is_stuck)
        .order_by(columns.submitted_at.desc(), columns.id)
    )
    return [_job_row(list(rows)) for _, rows in groupby(connection.execute(query), key=attrgetter("id"))]


def _job_row(rows: list[Any]) -> JobRow:
    """From a row for each state and stuckness that its tasks are in."""
    first, counts = rows[0], Counter[TaskState]()
    for row in rows:
        counts[TaskState(row.state)] += row.tasks
    return JobRow(
        id=first.id,
        name=first.name,
        model=first.model,
        submitted_by=first.submitted_by,
        submitted_at=first.submitted_at,
        state=job_state([(TaskState(row.state), row.is_stuck) for row in rows]),
        counts=counts,
        stuck=sum(row.tasks for row in rows if row.is_stuck),
        schedule=first.schedule,
        imported_from=first.imported_from,
    )


_LIVE = select(tables.tasks.c.id).where(
    tables.tasks.c.job == bindparam("job"), tables.tasks.c.state.in_(sorted(OPEN | ACTIVE))
)


def is_over(database: Database, job_id: str) -> bool:
    """Whether nothing of a job runs or waits any more: sooner known than its state."""
    with database.reading() as connection:
        return connection.execute(_LIVE.limit(1), {"job": job_id}).first() is None


def tasks(database: Database, job_id: str) -> list[TaskRow]:
    """A job's tasks in the order of the plan."""
    with database.reading() as connection:
        return _task_rows(connection, tables.tasks.c.job == job_id)


def task(database: Database, prefix: str) -> TaskRow:
    """One task, by the start of its id; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _task_rows(connection, tables.tasks.c.id == ids.find_task(connection, prefix))[0]


_TOLD = (
    *("id", "job", "stage", "subject", "target", "state", "needs", "settings", "waits_for", "is_stuck", "blocked_by"),
    *("attempt", "epoch", "failure", "toolchain", "lost", "after"),
)


def _task_rows(connection: Connection, condition: ColumnElement[bool]) -> list[TaskRow]:
    latest, before, own = tables.attempts.c, tables.attempts.alias("before"), tables.tasks.c
    is_before = and_(before.c.task == own.id, before.c.epoch == own.epoch - 1, before.c.epoch > own.asked_epoch)
    query = (
        select(
            *(own[name] for name in _TOLD),
            before.c.failure_kind.label("again_after"),
            latest.task.label("made_by"),
            latest.digest,
            latest.node,
            latest.places,
            latest.started_at,
            latest.ended_at,
            latest.failure_kind,
            latest.failure_message,
            latest.log_tail,
            latest.warnings,
        )
        .join(tables.attempts, latest.id == own.attempt, isouter=True)
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
        is_stuck=row.is_stuck,
        blocked_by=row.blocked_by,
        lost=row.lost,
        attempt=row.attempt,
        attempts=row.epoch,
        cached_from=row.made_by if row.state == TaskState.CACHED else None,
        node=row.node,
        devices=devices_of(row.places),
        started_at=row.started_at,
        ended_at=row.ended_at,
        failure=own_failure_of(row.failure) or failure_of(row.failure_kind, row.failure_message, row.log_tail),
        has_failed_before=row.failure is not None,
        toolchain=row.toolchain,
        warnings=tuple(row.warnings or ()),
        again_after=FailureKind(row.again_after) if row.again_after else None,
    )


def attempts(database: Database, task_id: str) -> list[AttemptRow]:
    """A task's own attempts, oldest first."""
    with database.reading() as connection:
        return _attempt_rows(connection, tables.attempts.c.task == task_id)


def attempt(database: Database, prefix: str) -> AttemptRow:
    """One attempt, by the start of its id; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _attempt_rows(connection, tables.attempts.c.id == ids.find_attempt(connection, prefix))[0]


def _attempt_rows(connection: Connection, condition: ColumnElement[bool]) -> list[AttemptRow]:
    columns, files = tables.attempts.c, tables.artifacts.c
    query = select(tables.attempts, tables.tasks.c.stage).join(tables.tasks).where(condition).order_by(columns.epoch)
    made = select(tables.artifacts).join(tables.attempts).where(condition).order_by(files.attempt, files.name)
    artifacts: dict[str, list[Artifact]] = defaultdict(list)
    for row in connection.execute(made):
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
        outcome=row.outcome,
        failure=failure_of(row.failure_kind, row.failure_message, row.log_tail),
        warnings=tuple(row.warnings),
        processes=processes_of(row.processes),
        artifacts=artifacts,
    )


def events(
    database: Database, *, job: str | None = None, task: str | None = None, after: int = 0, limit: int | None = None
) -> list[EventRow]:
    """Changes of state, oldest first, those with an id above `after`; `job` and `task` are whole ids."""
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
        was=TaskState(row.was) if row.was else None,
        became=TaskState(row.became) if row.became else None,
        detail=row.detail,
    )
