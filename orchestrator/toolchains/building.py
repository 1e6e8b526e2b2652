"""Which nodes are asked to build the toolchains that queued tasks want."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from db.store import Snapshot
from jobs.state import OPEN
from orchestrator.executor import Executor
from orchestrator.scheduler import Action, Build, Fail

if TYPE_CHECKING:
    from jobs.toolchains import Lock


@dataclass
class Building:
    """What one head asked for."""

    executor: Executor
    _failed: set[str] = field(default_factory=set)  #: locks that no node could build, and that tasks have failed for
    _known: set[str] = field(default_factory=set)  #: locks whose failures are those of builds that this head wanted

    def ask_anew(self, snapshot: Snapshot) -> None:
        """Let builds be tried again that failed for an earlier head, or that tasks have failed for: others want them
        by now."""
        locks = snapshot.locks
        new = {kept.digest for kept in locks.values()} - self._known
        waiting = (task for task in snapshot.tasks if task.state in OPEN) if self._failed else ()
        again = self._failed & {locks[task.toolchain].digest for task in waiting if task.toolchain in locks}
        if new or again:
            self.executor.forget_builds(new | again)
            self._known |= new
            self._failed -= again

    def ask(self, actions: Sequence[Action], snapshot: Snapshot) -> None:
        """Have nodes build what was decided; raises ClusterUnreachable."""
        wanted: dict[str, list[Lock]] = defaultdict(list)
        for action in actions:
            if isinstance(action, Build):
                kept = snapshot.locks[action.toolchain]
                self._known.add(kept.digest)
                for node in action.nodes:
                    wanted[node].append(kept.lock)
        if wanted:
            self.executor.build(wanted)

    def give_up(self, fails: Sequence[Fail]) -> None:
        """Tasks have failed."""
        self._failed |= {one.lock for one in fails if one.lock}
