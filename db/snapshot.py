"""What the head decides from."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from db.toolchains import KeptLock
from jobs.state import Failure, TaskState
from jobs.task import Device, Pin, Place, Resources
from jobs.toolchains import DEFAULT


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
    toolchain: str = DEFAULT  #: the name of what it runs under
    lost: str | None = None  #: its files that were lost, and that it makes again
    after: str | None = None  #: the task that it is compared with, and begins after, however that ends
    favoured: tuple[tuple[Place, ...], ...] = ()  #: where what it is compared with ran earlier: these go first

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the tasks that it needs."""
        return tuple(need.id for need in self.needed)

    @cached_property
    def wants(self) -> Hashable:
        """The same for all tasks that need the same; there are thousands in a decision, and few of them are new."""
        return (*vars(self.resources).values(), self.pin, self.avoids)

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
class Unresolved:
    """A toolchain whose packages could not be found out."""

    why: str
    failure: Failure | None = None  #: that ends what wants to run under it; None: it is tried again


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
    toolchains: frozenset[str] = frozenset()  #: names of what its tasks run under, but for the default
    locks: Mapping[str, KeptLock] = field(default_factory=dict)  #: what these stand for, by name
    unresolved: Mapping[str, Unresolved] = field(default_factory=dict)  #: by name, why some stand for nothing
    ran: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    #: by task that is done and that others come `after`, where its attempt ran
