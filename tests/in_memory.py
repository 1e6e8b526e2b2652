"""An executor that runs nothing: a test says what comes of the attempts that it was given."""

from collections.abc import Sequence

from jobs.state import Failure
from jobs.task import GIB, Artifact, Attempt, Device, Node, TaskResult
from tests.stored_jobs import NUMBERS

NODE = Node("a", "a.example", 8, 64 * GIB, tuple(Device("cpu", index) for index in range(8)))


class InMemoryExecutor:
    """Implements `orchestrator.executor.Executor`."""

    def __init__(self, *nodes: Node) -> None:
        self.known_nodes: Sequence[Node] = nodes
        self.attempts: dict[str, Attempt] = {}
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None  #: what `start` raises
        self.is_closed = False
        self._came: list[TaskResult] = []

    def nodes(self) -> Sequence[Node]:
        return self.known_nodes

    def open(self) -> None:
        pass

    def start(self, node: str, attempt: Attempt) -> None:
        if self.refusal:
            raise self.refusal
        self.started.append(attempt.id)
        self.attempts[attempt.id] = attempt

    def running(self) -> set[str]:
        return set(self.attempts)

    def collect(self, wait_s: float) -> list[TaskResult]:
        came, self._came = self._came, []
        for result in came:
            self.attempts.pop(result.attempt, None)
        return came

    def cancel(self, attempt: str) -> None:
        self.cancelled.append(attempt)

    def close(self) -> None:
        self.is_closed = True
        self.attempts.clear()

    def end(self, attempt: Attempt, failure: Failure | None = None, artifacts: Sequence[Artifact] = ()) -> TaskResult:
        """Let an attempt end: the next `collect` tells of it."""
        numbers = () if failure else NUMBERS
        result = TaskResult(attempt.id, attempt.epoch, failure, tuple(artifacts), numbers)
        self.deliver(result)
        return result

    def deliver(self, result: TaskResult) -> None:
        """Let a result come in."""
        self._came.append(result)
