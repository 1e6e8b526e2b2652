"""What the head needs of whatever runs attempts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from db.store import RunningAttempt
from jobs.task import Attempt, LogChunk, Node, TaskResult
from jobs.toolchains import Lock, Toolchain

LOCAL_NODE = "local"  #: the id of this machine where an executor runs attempts without a cluster


class Executor(Protocol):
    """Nodes, and attempts on them. Every call but `start_term`, `ensure_ready` and `collect` returns within moments."""

    def start_term(self, term: int, running: Sequence[RunningAttempt]) -> None:
        """Start a term of leadership, and adopt what earlier leaders started. Called once, before anything else.

        Every attempt in `running` that runs, or may run as far as can be told, is in `in_flight()` from now on and
        comes through `collect`: with its result, or as lost when its lease is over. Other attempts are ended. `term` is
        higher than that of every earlier leader, whose calls agents refuse from now on. Raises ClusterUnreachable.
        """

    def set_wakeup(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread and at once, whenever `collect` may have something."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes on which attempts can be started now. Raises ClusterUnreachable."""

    def cordoned(self) -> Mapping[str, str]:
        """Return the reasons of those of `nodes()` that take no new attempts: they drain at their own request, lack the
        artifact store, or differ from the head in what is installed."""

    def ensure_ready(self) -> None:
        """Make sure that attempts can be started; may take seconds the first time. Raises ClusterUnreachable."""

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Start attempts on the nodes of their places. Raises ClusterUnreachable.

        Return the reasons for those that do not run because somebody else holds what looked free. Attempts that are
        lost already come through `collect`.
        """

    def build_toolchains(self, wanted: Mapping[str, Sequence[Lock]]) -> None:
        """Have nodes, by id, build toolchains, unless that is under way. Raises ClusterUnreachable.

        `nodes()` tells the outcome, `built_toolchains()` what was built.
        """

    def built_toolchains(self) -> Mapping[str, Toolchain]:
        """Return the toolchains that were requested and built, as a node described them, by their locks' digests."""

    def forget_build_failures(self, digests: Collection[str]) -> None:
        """Let nodes that failed to build these toolchains try again when they are asked to."""

    def in_flight(self) -> set[str]:
        """Return the ids of the attempts that were started or adopted and whose results were not collected yet."""

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Return the results since the last call, lost attempts included, or the first one that comes within `wait_s`.

        An agent keeps a result until the head polls it again: store what is collected before the next call.
        """

    def cancel(self, attempt: str) -> None:
        """End an attempt's processes; its result comes through `collect`. Unknown ids are ignored."""

    def read_logs(self, attempts: Collection[str]) -> list[LogChunk]:
        """Return what these attempts wrote to their logs since the last call, the first time from the beginning."""

    def detach(self) -> None:
        """Disconnect; what runs goes on for the next leader, as long as its lease lasts."""

    def close(self) -> None:
        """End everything that was started, and leave no process behind."""
