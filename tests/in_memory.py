"""An executor that runs nothing: a test says what comes of the attempts that it was given."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from db.store import RunningAttempt
from jobs.errors import HaloError, UnknownToolchain
from jobs.state import Failure, FailureKind
from jobs.task import GIB, Artifact, Attempt, Device, LogChunk, Node, TaskResult
from jobs.toolchains import Lock, Toolchain
from tests.stored_jobs import NUMBERS, TOOLCHAIN
from workers.processes import Cancellation

NODE = Node("a", "a.example", 8, 64 * GIB, tuple(Device("cpu", index) for index in range(8)))


class InMemoryResolver:
    """Implements `locks.Resolver`: it knows what it was given, and raises it where that is an error."""

    def __init__(self, **known: Lock | HaloError) -> None:
        self.known: dict[str, Lock | HaloError] = known
        self.asked: list[str] = []

    def source(self, name: str) -> str:
        found = self.known.get(name)
        return found.source if isinstance(found, Lock) else ""

    def resolve(self, name: str, cancellation: Cancellation) -> Lock:
        self.asked.append(name)
        found = self.known.get(name, UnknownToolchain(name, tuple(self.known)))
        if isinstance(found, HaloError):
            raise found
        return found


class InMemoryExecutor:
    """Implements `orchestrator.executor.Executor`."""

    def __init__(self, *nodes: Node) -> None:
        self.known_nodes: Sequence[Node] = nodes
        self.attempts: dict[str, Attempt] = {}
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None  #: what `start` raises
        self.no_room: str | None = None  #: why nothing can be started
        self.closed_nodes: dict[str, str] = {}
        self.logs: dict[str, str] = {}  #: what attempts have written so far
        self.is_closed = False
        self.is_left = False
        self.keeps_running = False  #: whether what earlier leaders started still runs when it is taken over
        self.term = 0
        self.asked: dict[tuple[str, str], Lock] = {}  #: to be built, by node and digest
        self.built_toolchains: dict[str, Toolchain] = {}
        self._taken_over: set[str] = set()
        self._followed: dict[str, int] = {}
        self._came: list[TaskResult] = []
        self._wake: Callable[[], None] = lambda: None

    def nodes(self) -> Sequence[Node]:
        return self.known_nodes

    def open(self) -> None:
        pass

    def lead(self, term: int, known: Sequence[RunningAttempt]) -> None:
        self.term = term
        self._taken_over = {one.id for one in known}
        for one in () if self.keeps_running else known:
            self.deliver(TaskResult(one.id, one.epoch, Failure(FailureKind.LEASE_LOST, "nobody runs it")))

    def wakes(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def closed(self) -> Mapping[str, str]:
        return self.closed_nodes

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        if self.refusal:
            raise self.refusal
        if self.no_room:
            return dict.fromkeys((attempt.id for attempt in attempts), self.no_room)
        self.attempts |= {attempt.id: attempt for attempt in attempts}
        self.started += [attempt.id for attempt in attempts]  # last: tests in other threads wait for it
        return {}

    def build(self, wanted: Mapping[str, Sequence[Lock]]) -> None:
        for node, locks in wanted.items():
            self.asked |= {(node, lock.digest): lock for lock in locks}

    def built(self) -> Mapping[str, Toolchain]:
        return self.built_toolchains

    def forget_builds(self, digests: Collection[str]) -> None:
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
            self.built_toolchains[lock.digest] = lock.toolchain(TOOLCHAIN, frozenset({"--of-the-lock"}))
        self.known_nodes = [
            replace(found, toolchains={**found.toolchains, lock.digest: why}) if found.id == node else found
            for found in self.known_nodes
        ]
        self._wake()

    def running(self) -> set[str]:
        return set(self.attempts) | self._taken_over

    def collect(self, wait_s: float) -> list[TaskResult]:
        came, self._came = self._came, []
        for result in came:
            self.attempts.pop(result.attempt, None)
            self._taken_over.discard(result.attempt)
        return came

    def cancel(self, attempt: str) -> None:
        self.cancelled.append(attempt)

    def follow(self, attempts: Collection[str]) -> list[LogChunk]:
        found = []
        for attempt in attempts:
            begin = self._followed.get(attempt, 0)
            self._followed[attempt] = len(self.logs.get(attempt, ""))
            found.append(LogChunk(attempt, begin, self.logs.get(attempt, "")[begin:]))
        return found

    def leave(self) -> None:
        self.is_left = True

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
        self._wake()
