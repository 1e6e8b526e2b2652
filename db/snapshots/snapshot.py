"""The snapshot of a database that the scheduler decides from."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from db.writes.toolchains import StoredLock
from jobs.state import Failure, TaskState
from jobs.task import Device, Pin, Place, Resources
from jobs.toolchains import DEFAULT


@dataclass(frozen=True)
class NeededTask:
    """A task whose outputs another one reads."""

    id: str
    stage: str


@dataclass(frozen=True)
class OpenTask:
    """A task of a job that has not ended; the task itself may be in any state."""

    id: str
    job: str
    stage: str
    subject: str  #: what it is done for, in a few words
    state: TaskState
    epoch: int  #: of its latest attempt; 0 before the first
    needed: tuple[NeededTask, ...]
    settings: Mapping[str, Any]
    resources: Resources
    waits_for: str | None
    is_unschedulable: bool  #: no node of the cluster could ever take it
    submitted_at: datetime  #: its job
    submitted_by: str
    timeout_s: float  #: of one attempt
    reuse: bool  #: an earlier task's outputs may be reused
    priority: int = 0  #: of its job; higher goes first
    pin: Pin | None = None  #: the only place where it may run; None: anywhere
    avoids: tuple[str, ...] = ()  #: nodes that failed it since its submission or last retry: others are preferred
    expected_s: float | None = None  #: how long similar tasks took lately; None: unknown
    toolchain: str = DEFAULT  #: name of the toolchain that it runs under
    lost_artifacts: str | None = None  #: names of its lost files, which it makes again
    after: str | None = None  #: the task that a gate compares it with; it starts after that has ended in any way
    affinity: tuple[tuple[Place, ...], ...] = ()  #: places of the runs that it is compared with; they are preferred
    defect: Failure | None = None  #: why it can't be run as it is stored: it fails

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the ids of the tasks that it needs."""
        return tuple(need.id for need in self.needed)

    @cached_property
    def request_key(self) -> Hashable:
        """Return a key that is equal for tasks with equal requests: among thousands of tasks few are different."""
        return (*vars(self.resources).values(), self.pin, self.avoids)

    @property
    def attempts(self) -> int:
        """Return how many attempts there were: each increments the epoch."""
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
    expected_s: float | None = None  #: how long similar tasks took lately; None: unknown

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices of all its places."""
        return tuple(device for place in self.places for device in place.devices)


@dataclass(frozen=True)
class UnresolvedToolchain:
    """A toolchain whose packages could not be resolved."""

    why: str
    failure: Failure | None = None  #: failure of the tasks that need it; None: resolving is retried


@dataclass(frozen=True)
class Snapshot:
    """The state of the database at one moment, as far as decisions need it."""

    tasks: tuple[OpenTask, ...]  #: all tasks of the jobs that have not ended, in order of submission
    running: tuple[RunningAttempt, ...]
    cordoned: Mapping[str, str] = field(default_factory=dict)  #: cordoned nodes, with the reason
    requeuing: frozenset[str] = frozenset()  #: those of them whose attempts are ended and requeued
    quarantined: Mapping[tuple[str, str, int], str] = field(default_factory=dict)
    #: quarantined devices by node, kind and index, with the reason
    usage: Mapping[str, float] = field(default_factory=dict)  #: recent device seconds by user, for fair shares
    toolchains: frozenset[str] = frozenset()  #: names of the toolchains of its tasks, except the default
    locks: Mapping[str, StoredLock] = field(default_factory=dict)  #: current locks of these, by name
    unresolved: Mapping[str, UnresolvedToolchain] = field(default_factory=dict)  #: by name, why some have no lock
    ran_on: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    #: by done task that others start `after`, where its attempt ran
