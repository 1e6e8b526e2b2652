"""What the head needs of whatever runs attempts."""

from collections.abc import Sequence
from typing import Protocol

from jobs.task import Attempt, Node, TaskResult


class NoRoom(Exception):
    """A node that looked free is not: somebody else holds what the attempt needs. Try again later."""


class Executor(Protocol):
    """Nodes, and attempts on them. Every call but `open` and `collect` returns within moments."""

    def nodes(self) -> Sequence[Node]:
        """The nodes that attempts can be started on now; raises ClusterUnreachable."""

    def open(self) -> None:
        """Make sure that attempts can be started; may take seconds the first time. Raises ClusterUnreachable."""

    def start(self, node: str, attempt: Attempt) -> None:
        """Hand an attempt to a node; raises NoRoom, ClusterUnreachable. `collect` tells of one that is lost already."""

    def running(self) -> set[str]:
        """Ids of the attempts that were started and whose results were not collected yet."""

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Results that came in since the last call, or within `wait_s` a first one; lost attempts among them."""

    def cancel(self, attempt: str) -> None:
        """End an attempt's processes; its result comes through `collect`. Unknown ids are ignored."""

    def close(self) -> None:
        """End everything that was started, and leave no process behind."""
