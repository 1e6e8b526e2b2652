"""What the head decides from, read in a few queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, select

from db import tables
from db.filters import parts
from db.values import pin_of, places_of
from jobs.state import ACTIVE, OPEN, TaskState
from jobs.task import Device, Pin, Place, Resources


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
    priority: int = 0  #: of its job; higher goes first
    pin: Pin | None = None  #: where alone it may run
    avoids: tuple[str, ...] = ()  #: nodes that failed it since it was last asked for: others go first
    expected_s: float | None = None  #: how long its like took lately; None: not known

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
    places: tuple[Place, ...]
    resources: Resources
    started_at: datetime
    timeout_s: float
    digest: str  #: of what it computes
    submitted_by: str = ""
    expected_s: float | None = None  #: how long its like took lately; None: not known

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those of all its places."""
        return tuple(device for place in self.places for device in place.devices)


@dataclass(frozen=True)
class Snapshot:
    """All that a decision needs, as it was at one moment."""

    tasks: tuple[OpenTask, ...]  #: all of every job that has a task which has not ended, in order of submission
    running: tuple[RunningAttempt, ...]
    closed: Mapping[str, str] = field(default_factory=dict)  #: nodes that get nothing new, with the reason
    handing_back: frozenset[str] = frozenset()  #: those of them whose attempts are ended, and queued again
    quarantined: Mapping[tuple[str, str, int], str] = field(default_factory=dict)
    #: devices that must not be used, with the reason: by node, kind and index
    usage: Mapping[str, float] = field(default_factory=dict)  #: by user: device seconds of late, for fair shares


#: What of a task changes after its submission.
CHANGING = ("state", "epoch", "waits_for", "is_stuck")


class Reader:
    """Reads snapshots; what never changes of a task is read once."""

    def __init__(self) -> None:
        self._tasks: dict[str, OpenTask] = {}

    def read(self, connection: Connection) -> Snapshot:
        """The jobs that are not over, and what runs."""
        rows = connection.execute(_query(*(tables.tasks.c[name] for name in CHANGING))).all()
        unknown = [row.id for row in rows if row.id not in self._tasks]
        fresh = [row for part in parts(unknown) for row in connection.execute(_whole(part))]
        stages = {row.id: row.stage for row in fresh}
        self._tasks |= {row.id: _open_task(row, stages) for row in fresh}
        self._tasks = {row.id: _brought_up(self._tasks[row.id], row) for row in rows}
        return Snapshot(tuple(self._tasks.values()), _running(connection))


def _query(*columns: Any) -> Select[Any]:
    """Tasks of the jobs that are not over, by their id and `columns`, in the order of submission."""
    jobs, tasks = tables.jobs, tables.tasks
    live = select(tasks.c.job).where(tasks.c.state.in_(sorted(OPEN | ACTIVE)))
    query = select(tasks.c.id, *columns).join(jobs, jobs.c.id == tasks.c.job).where(tasks.c.job.in_(live))
    return query.order_by(jobs.c.submitted_at, tasks.c.id)


def _whole(ids: Sequence[str]) -> Select[Any]:
    jobs, tasks = tables.jobs, tables.tasks
    columns = (jobs.c.submitted_at, jobs.c.submitted_by, jobs.c.timeout_s, jobs.c.reuse, jobs.c.priority)
    return select(tasks, *columns).join(jobs, jobs.c.id == tasks.c.job).where(tasks.c.id.in_(ids))


def _brought_up(task: OpenTask, row: Any) -> OpenTask:
    """The task as it is now: the same object where nothing changed."""
    if (task.state, task.epoch, task.waits_for, task.is_stuck) == (row.state, row.epoch, row.waits_for, row.is_stuck):
        return task
    return replace(
        task, state=TaskState(row.state), epoch=row.epoch, waits_for=row.waits_for, is_stuck=bool(row.is_stuck)
    )


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
        priority=row.priority,
        pin=pin_of(row.pin),
    )


def _running(connection: Connection) -> tuple[RunningAttempt, ...]:
    jobs, tasks, attempts = tables.jobs, tables.tasks, tables.attempts
    names = ("id", "task", "epoch", "places", "started_at", "timeout_s", "digest")
    columns = [attempts.c[name] for name in names]
    query = (
        select(*columns, tasks.c.state, tasks.c.resources, jobs.c.submitted_by)
        .join(attempts, attempts.c.id == tasks.c.attempt)
        .join(jobs, jobs.c.id == tasks.c.job)
        .where(tasks.c.state.in_(sorted(ACTIVE)))
        .order_by(attempts.c.id)
    )
    return tuple(
        RunningAttempt(
            id=row.id,
            task=row.task,
            epoch=row.epoch,
            state=TaskState(row.state),
            places=places_of(row.places),
            resources=Resources(**row.resources),
            started_at=row.started_at,
            timeout_s=row.timeout_s,
            digest=row.digest,
            submitted_by=row.submitted_by,
        )
        for row in connection.execute(query)
    )
