"""The agent of a node: runs attempts, each in a thread of its own, and keeps their results until they are taken."""

import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from jobs.state import Failure, FailureKind
from jobs.task import Attempt, Node, TaskResult
from jobs.toolchains import Toolchain
from workers.artifacts import ArtifactStore
from workers.devices import describe_node
from workers.environment import probe_toolchain
from workers.failures import tail
from workers.folders import clear_leftovers
from workers.processes import Cancellation
from workers.run_task import run


class Agent:
    """Runs the attempts that one node is given. Every method but `stop` returns within milliseconds, unless asked to
    wait, and may be called from any thread."""

    def __init__(self, node_id: str, data: Path, artifacts: Path | None = None) -> None:
        """`data` is the node's folder (work/, logs/, cache/); `artifacts` the store's, by default in `data`.

        Ends and removes what a killed agent left in `data`. Raises StorageUnusable where the store can't be written.
        """
        self._data = data.absolute()
        self._store = ArtifactStore(artifacts or self._data / "artifacts")
        clear_leftovers(self._data)
        self._node = describe_node(node_id)
        self._toolchain = probe_toolchain(self._data / "cache")
        self._changed = threading.Condition()
        self._started: set[str] = set()  #: every attempt that it was ever given
        self._cancellations: dict[str, Cancellation] = {}  #: of the attempts that run
        self._results: dict[str, TaskResult] = {}  #: not acknowledged yet
        self._is_stopped = False

    def describe(self) -> Node:
        """The node, its processors, memory and devices."""
        return self._node

    def toolchain(self) -> Toolchain:
        """What stages run under on this node."""
        return self._toolchain

    def start(self, attempt: Attempt) -> None:
        """Begin an attempt; a second call for the same one changes nothing, ever. A stopped agent answers with
        a result of kind cancelled."""
        with self._changed:
            if attempt.id in self._started:
                return
            cancellation = Cancellation()
            if self._is_stopped:
                cancellation.cancel()
            self._started.add(attempt.id)
            self._cancellations[attempt.id] = cancellation
            threading.Thread(target=self._run, args=(attempt, cancellation), name=attempt.id, daemon=True).start()

    def running(self) -> list[str]:
        """Ids of the attempts that have not ended."""
        with self._changed:
            return list(self._cancellations)

    def poll(self, acknowledged: Iterable[str] = (), wait_s: float = 0.0) -> list[TaskResult]:
        """Forget the acknowledged attempts' results and return the others; wait up to `wait_s` for a first one."""
        with self._changed:
            for attempt_id in acknowledged:
                self._results.pop(attempt_id, None)
            self._changed.wait_for(lambda: self._results, wait_s)
            return list(self._results.values())

    def cancel(self, attempt_id: str) -> bool:
        """Ask an attempt to end; its result, of kind cancelled, comes when no process of it is left. False where it
        does not run."""
        with self._changed:
            cancellation = self._cancellations.get(attempt_id)
        if cancellation:
            cancellation.cancel()
        return cancellation is not None

    def stop(self, timeout_s: float = 30.0) -> bool:
        """End everything and run nothing more; whether all had ended in time. Results can still be polled."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._is_stopped = True
            wishes = list(self._cancellations.values())
        for cancellation in wishes:
            cancellation.cancel()
        with self._changed:
            return self._changed.wait_for(lambda: not self._cancellations, deadline - time.monotonic())

    def _run(self, attempt: Attempt, cancellation: Cancellation) -> None:
        """The border: whatever is raised in here was not thought of, and still becomes a result."""
        try:
            result = run(attempt, self._data, self._store, self._toolchain, cancellation)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            failure = Failure(FailureKind.INTERNAL, message, tail(traceback.format_exc()))
            result = TaskResult(attempt.id, attempt.epoch, failure)
        with self._changed:
            self._results[attempt.id] = result
            del self._cancellations[attempt.id]
            self._changed.notify_all()
