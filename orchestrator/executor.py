"""What the head needs of whatever runs attempts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from db.store import RunningAttempt
from jobs.task import Attempt, LogChunk, Node, TaskResult
from jobs.toolchains import Lock, Toolchain

__all__ = ["Executor", "LogChunk"]


class Executor(Protocol):
    """Nodes, and attempts on them. Every call but `lead`, `open` and `collect` returns within moments."""

    def lead(self, term: int, known: Sequence[RunningAttempt]) -> None:
        """Begin to lead: take over what earlier leaders started. Called once, before anything else.

        Of `known` all that runs, or may run as far as can be told, is in `running()` from now on and comes through
        `collect`: with its result, or as lost when its lease is over. What runs and is not known is ended. `term` is
        higher than that of every earlier leader, whom agents obey no more. Raises ClusterUnreachable.
        """

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread and at once, whenever `collect` may have something."""

    def nodes(self) -> Sequence[Node]:
        """The nodes that attempts can be started on now; raises ClusterUnreachable."""

    def closed(self) -> Mapping[str, str]:
        """Those of `nodes()` that want nothing new, each with the reason: their drain was asked for on the spot, or
        what is installed there differs from what the head has."""

    def open(self) -> None:
        """Make sure that attempts can be started; may take seconds the first time. Raises ClusterUnreachable."""

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Hand attempts to the nodes of their places; raises ClusterUnreachable.

        Returns those that found no room, which do not run, each with the reason: somebody else holds what looked
        free. `collect` tells of those that are lost already.
        """

    def build(self, wanted: Mapping[str, Sequence[Lock]]) -> None:
        """Have nodes build toolchains, by node; what is under way is not begun again. Raises ClusterUnreachable.

        `nodes()` tells what came of it, `built()` what was built.
        """

    def built(self) -> Mapping[str, Toolchain]:
        """The toolchains that were built and asked for, as a node found them, by their locks' digests."""

    def forget_builds(self, digests: Collection[str]) -> None:
        """What nodes told of these that they could not build is past: they are to try again when they are asked."""

    def running(self) -> set[str]:
        """Ids of the attempts that were started or taken over and whose results were not collected yet."""

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Results that came in since the last call, or within `wait_s` a first one; lost attempts among them.

        An agent keeps a result until the head has asked it for more: what is collected is to be stored before that.
        """

    def cancel(self, attempt: str) -> None:
        """End an attempt's processes; its result comes through `collect`. Unknown ids are ignored."""

    def follow(self, attempts: Collection[str]) -> list[LogChunk]:
        """What these attempts wrote to their logs since they were last followed, or from the beginning."""

    def leave(self) -> None:
        """Let go of everything: what runs goes on for the next leader, as long as its lease lasts."""

    def close(self) -> None:
        """End everything that was started, and leave no process behind."""
