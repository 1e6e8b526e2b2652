"""What the head decides from, read in two queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from db import tables
from db.values import devices_of
from jobs.state import ACTIVE, OPEN, TaskState
from jobs.task import Device, Resources


@dataclass(frozen=True)
class Need:
    """A task that another one needs."""

    id: str
    stage: str


@dataclass(frozen=True)
class OpenTask:
    """A task of a job that is not over; it may itself be in any state."""

    id: str
    job: str
    stage: str
    subject: str  #: what it is done for, in a few words
    state: TaskState
    epoch: int  #: of its latest attempt; 0 before the first
    needed: tuple[Need, ...]
    settings: Mapping[str, Any]
    resources: Resources
    waits_for: str | None
    is_stuck: bool  #: no node of the cluster could ever take it
    submitted_at: datetime  #: its job
    submitted_by: str
    timeout_s: float  #: of one attempt
    reuse: bool  #: an earlier task's outputs may be taken over

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the tasks that it needs."""
        return tuple(need.id for need in self.needed)

    @property
    def attempts(self) -> int:
        """How many there were: each has an epoch of its own."""
        return self.epoch


@dataclass(frozen=True)
class RunningAttempt:
    """An attempt that has not ended as far as the database knows."""

    id: str
    task: str
    epoch: int
    state: TaskState  #: its task's: running or cancelling
    node: str
    devices: tuple[Device, ...]
    resources: Resources
    started_at: datetime
    digest: str  #: of what it computes


@dataclass(frozen=True)
class Snapshot:
    """All that a decision needs, as it was at one moment."""

    tasks: tuple[OpenTask, ...]  #: all of every job that has a task which has not ended, in order of submission
    running: tuple[RunningAttempt, ...]


def read(connection: Connection) -> Snapshot:
    """The jobs that are not over, and what runs."""
    jobs, tasks = tables.jobs, tables.tasks
    live = select(tasks.c.job).where(tasks.c.state.in_(sorted(OPEN | ACTIVE)))
    query = (
        select(tasks, jobs.c.submitted_at, jobs.c.submitted_by, jobs.c.timeout_s, jobs.c.reuse)
        .join(jobs, jobs.c.id == tasks.c.job)
        .where(tasks.c.job.in_(live))
        .order_by(jobs.c.submitted_at, tasks.c.id)
    )
    rows = connection.execute(query).all()
    stages = {row.id: row.stage for row in rows}
    return Snapshot(tuple(_open_task(row, stages) for row in rows), _running(connection))


def _open_task(row: Any, stages: Mapping[str, str]) -> OpenTask:
    return OpenTask(
        id=row.id,
        job=row.job,
        stage=row.stage,
        subject=row.subject,
        state=TaskState(row.state),
        epoch=row.epoch,
        needed=tuple(Need(need, stages[need]) for need in row.needs),
        settings=row.settings,
        resources=Resources(**row.resources),
        waits_for=row.waits_for,
        is_stuck=row.is_stuck,
        submitted_at=row.submitted_at,
        submitted_by=row.submitted_by,
        timeout_s=row.timeout_s,
        reuse=row.reuse,
    )


def _running(connection: Connection) -> tuple[RunningAttempt, ...]:
    tasks, attempts = tables.tasks, tables.attempts
    query = (
        select(attempts, tasks.c.state, tasks.c.resources)
        .join(attempts, attempts.c.id == tasks.c.attempt)
        .where(tasks.c.state.in_(sorted(ACTIVE)))
        .order_by(attempts.c.id)
    )
    return tuple(
        RunningAttempt(
            id=row.id,
            task=row.task,
            epoch=row.epoch,
            state=TaskState(row.state),
            node=row.node,
            devices=devices_of(row.devices),
            resources=Resources(**row.resources),
            started_at=row.started_at,
            digest=row.digest,
        )
        for row in connection.execute(query)
    )
