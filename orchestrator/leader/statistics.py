"""What a process that leads counts of its own work, for its `/metrics`. Written by one thread, read by any."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from db.snapshots.snapshot import Snapshot
from jobs.task import TaskResult

SUCCEEDED = "succeeded"


@dataclass
class Timing:
    """How often something was done, and how long all of it took."""

    count: int = 0
    total_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Add one more time."""
        self.count += 1
        self.total_s += duration_s


@dataclass
class Statistics:
    """The counts since the process was started."""

    clock: Callable[[], float] = time.monotonic
    is_leading: bool = False
    steps: Timing = field(default_factory=Timing)
    decisions: Timing = field(default_factory=Timing)
    transactions: Mapping[str, Timing] = field(default_factory=lambda: {"read": Timing(), "write": Timing()})
    snapshot: Snapshot | None = None  #: of the latest decision
    nodes: Mapping[str, str | None] = field(default_factory=dict)  #: those that are up, and why they take no task
    lost_nodes: int = 0
    attempts: Counter[str] = field(default_factory=Counter)  #: that ended, by the kind of failure
    _stepped_at: float | None = None

    @property
    def lag_s(self) -> float:
        """How long ago the latest step of the head ended without an error; 0 while it does not lead."""
        return self.clock() - self._stepped_at if self.is_leading and self._stepped_at is not None else 0.0

    def set_leading(self, is_leading: bool) -> None:
        """Note whether this process leads now; its lag begins with the lead, and tasks and nodes are the leader's."""
        if is_leading and not self.is_leading:
            self._stepped_at = self.clock()
        elif not is_leading:
            self.snapshot, self.nodes = None, {}
        self.is_leading = is_leading

    def stepped(self, duration_s: float) -> None:
        """Note a step of the head."""
        self.steps.add(duration_s)
        self._stepped_at = self.clock()

    def observe(self, kind: str, duration_s: float) -> None:
        """Note a transaction of the database: `read` or `write`."""
        self.transactions[kind].add(duration_s)

    def ended(self, result: TaskResult) -> None:
        """Note the end of an attempt."""
        self.attempts[result.failure.kind if result.failure else SUCCEEDED] += 1
