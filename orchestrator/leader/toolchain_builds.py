"""Asks nodes to build the toolchains that queued tasks need."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from db.store import Snapshot
from jobs.state import OPEN
from orchestrator.executor import Executor
from orchestrator.scheduler.decision import Action, Build, Fail

if TYPE_CHECKING:
    from jobs.toolchains import Lock


@dataclass
class ToolchainBuilds:
    """The builds that one head requested."""

    executor: Executor
    _failed: set[str] = field(default_factory=set)  #: locks that no node could build, and for which tasks failed
    _known: set[str] = field(default_factory=set)  #: locks whose failures are of builds that this head requested

    def allow_retries(self, snapshot: Snapshot) -> None:
        """Let builds be tried again that failed for an earlier head, or for tasks that have failed since."""
        locks = snapshot.locks
        new = {stored.digest for stored in locks.values()} - self._known
        waiting = (task for task in snapshot.tasks if task.state in OPEN) if self._failed else ()
        again = self._failed & {locks[task.toolchain].digest for task in waiting if task.toolchain in locks}
        if new or again:
            self.executor.forget_build_failures(new | again)
            self._known |= new
            self._failed -= again

    def request(self, actions: Sequence[Action], snapshot: Snapshot) -> None:
        """Have nodes build what was decided. Raises ClusterUnreachable."""
        wanted: dict[str, list[Lock]] = defaultdict(list)
        for action in actions:
            if isinstance(action, Build):
                stored = snapshot.locks[action.toolchain]
                self._known.add(stored.digest)
                for node in action.nodes:
                    wanted[node].append(stored.lock)
        if wanted:
            self.executor.build_toolchains(wanted)

    def note_failed(self, fails: Sequence[Fail]) -> None:
        """Note the locks for which tasks failed."""
        self._failed |= {fail.lock for fail in fails if fail.lock}
