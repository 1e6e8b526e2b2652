"""An executor that runs nothing: a test sets the results of the attempts that it was given."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from db.store import RunningAttempt
from jobs.errors import HaloError, UnknownToolchain
from jobs.state import Failure, FailureKind
from jobs.task import GIB, Artifact, Attempt, Device, LogChunk, Node, TaskResult
from jobs.toolchains import Lock, Toolchain
from tests.stored_jobs import NUMBERS, TOOLCHAIN
from workers.processes.cancellation import Cancellation

NODE = Node("a", "a.example", 8, 64 * GIB, tuple(Device("cpu", index) for index in range(8)))


class InMemoryResolver:
    """Implements `locks.Resolver` from a table; a stored error is raised."""

    def __init__(self, **known: Lock | HaloError) -> None:
        self.known: dict[str, Lock | HaloError] = known
        self.asked: list[str] = []

    def source(self, name: str) -> str:
        lock = self.known.get(name)
        return lock.source if isinstance(lock, Lock) else ""

    def resolve(self, name: str, cancellation: Cancellation) -> Lock:
        self.asked.append(name)
        resolved = self.known.get(name, UnknownToolchain(name, tuple(self.known)))
        if isinstance(resolved, HaloError):
            raise resolved
        return resolved


class InMemoryExecutor:
    """Implements `orchestrator.executor.Executor`."""

    def __init__(self, *nodes: Node) -> None:
        self.known_nodes: Sequence[Node] = nodes
        self.attempts: dict[str, Attempt] = {}
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None  #: what `start` raises
        self.no_room: str | None = None  #: why nothing can be started
        self.cordons: dict[str, str] = {}
        self.logs: dict[str, str] = {}  #: what attempts have written so far
        self.is_closed = False
        self.is_detached = False
        self.keeps_running = False  #: whether what earlier leaders started still runs when it is adopted
        self.term = 0
        self.asked: dict[tuple[str, str], Lock] = {}  #: to be built, by node and digest
        self.builds: dict[str, Toolchain] = {}
        self._adopted: set[str] = set()
        self._followed: dict[str, int] = {}
        self._came: list[TaskResult] = []
        self._wake: Callable[[], None] = lambda: None

    def nodes(self) -> Sequence[Node]:
        return self.known_nodes

    def ensure_ready(self) -> None:
        pass

    def start_term(self, term: int, running: Sequence[RunningAttempt]) -> None:
        self.term = term
        self._adopted = {attempt.id for attempt in running}
        for attempt in () if self.keeps_running else running:
            self.deliver(TaskResult(attempt.id, attempt.epoch, Failure(FailureKind.LEASE_LOST, "nobody runs it")))

    def set_wakeup(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def cordoned(self) -> Mapping[str, str]:
        return self.cordons

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        if self.refusal:
            raise self.refusal
        if self.no_room:
            return dict.fromkeys((attempt.id for attempt in attempts), self.no_room)
        self.attempts |= {attempt.id: attempt for attempt in attempts}
        self.started += [attempt.id for attempt in attempts]  # last: tests in other threads wait for it
        return {}

    def build_toolchains(self, wanted: Mapping[str, Sequence[Lock]]) -> None:
        for node, locks in wanted.items():
            self.asked |= {(node, lock.digest): lock for lock in locks}

    def built_toolchains(self) -> Mapping[str, Toolchain]:
        return self.builds

    def forget_build_failures(self, digests: Collection[str]) -> None:
        for key in [key for key in self.asked if key[1] in digests]:
            del self.asked[key]
        self.known_nodes = [
            replace(
                node, toolchains={lock: why for lock, why in node.toolchains.items() if not (why and lock in digests)}
            )
            for node in self.known_nodes
        ]

    def end_build(self, lock: Lock, why: str = "", node: str = "a") -> None:
        """Let a build end, or fail for a reason."""
        assert (node, lock.digest) in self.asked
        if not why:
            self.builds[lock.digest] = lock.toolchain(TOOLCHAIN, frozenset({"--of-the-lock"}))
        self.known_nodes = [
            replace(known_node, toolchains={**known_node.toolchains, lock.digest: why})
            if known_node.id == node
            else known_node
            for known_node in self.known_nodes
        ]
        self._wake()

    def in_flight(self) -> set[str]:
        return set(self.attempts) | self._adopted

    def collect(self, wait_s: float) -> list[TaskResult]:
        came, self._came = self._came, []
        for result in came:
            self.attempts.pop(result.attempt, None)
            self._adopted.discard(result.attempt)
        return came

    def cancel(self, attempt: str) -> None:
        self.cancelled.append(attempt)

    def read_logs(self, attempts: Collection[str]) -> list[LogChunk]:
        chunks = []
        for attempt in attempts:
            begin = self._followed.get(attempt, 0)
            self._followed[attempt] = len(self.logs.get(attempt, ""))
            chunks.append(LogChunk(attempt, begin, self.logs.get(attempt, "")[begin:]))
        return chunks

    def detach(self) -> None:
        self.is_detached = True

    def close(self) -> None:
        self.is_closed = True
        self.attempts.clear()

    def end(self, attempt: Attempt, failure: Failure | None = None, artifacts: Sequence[Artifact] = ()) -> TaskResult:
        """End an attempt: the next `collect` returns its result."""
        numbers = () if failure else NUMBERS
        result = TaskResult(attempt.id, attempt.epoch, failure, tuple(artifacts), numbers)
        self.deliver(result)
        return result

    def deliver(self, result: TaskResult) -> None:
        """Let a result come in."""
        self._came.append(result)
        self._wake()
