"""What the head decides from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.state import TaskState
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
