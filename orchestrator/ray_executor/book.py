"""Attempts that were handed over, and results that wait to be collected."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from db.store import RunningAttempt
from jobs.state import Failure, FailureKind
from jobs.task import TaskResult
from orchestrator.ray_executor.handed import Handed


class Book:
    """What is where, and what came of it."""

    def __init__(self, end_rest: Callable[[Handed], None], release: Callable[[Handed], None]) -> None:
        """`end_rest` asks the nodes of an attempt that have not told yet to end it; `release` lets go of what one held
        that has ended everywhere."""
        self._end_rest, self._release = end_rest, release
        self.handed: dict[str, Handed] = {}  #: not collected yet
        self._done: list[TaskResult] = []
        self._collected: Sequence[Handed] = ()  #: by the latest `collect`

    @property
    def has_results(self) -> bool:
        """Whether `collect` has something."""
        return bool(self._done)

    @property
    def nodes(self) -> set[str]:
        """Those that have still to tell something."""
        return {node for handed in self.handed.values() for node in handed.open_nodes}

    def take_over(self, known: Sequence[RunningAttempt]) -> None:
        """Begin with what an earlier head handed over."""
        self.handed = {one.id: Handed(one.id, one.epoch, [place.node for place in one.places]) for one in known}
        self._done, self._collected = [], ()

    def open_on(self, node: str) -> list[Handed]:
        """What a node has still to tell of."""
        return [handed for handed in self.handed.values() if handed.is_open_on(node)]

    def expected(self, node: str) -> Mapping[str, int]:
        """What a node should have: ids with their epochs. Also what it has told, until that is stored."""
        unstored = [*self.handed.values(), *self._collected]
        return {one.id: one.epoch for one in unstored if node in one.nodes and node not in one.lost_on}

    def is_stored(self, attempt: str) -> bool:
        """Whether its result may be forgotten."""
        return attempt not in self.handed and all(handed.id != attempt for handed in self._collected)

    def take(self, node: str, result: TaskResult) -> bool:
        """Take a node's result in; False where nobody waits for it. One node's failure ends a gang."""
        handed = self.handed.get(result.attempt)
        if handed is None or not handed.is_open_on(node) or handed.epoch != result.epoch:
            return False
        handed.take(node, result)
        if not handed.open_nodes:
            self._done.append(handed.merged())
            self._release(handed)
        elif result.failure:
            self.end(handed)
        return True

    def lose(self, attempts: Iterable[str], node: str, reason: str, kind: FailureKind = FailureKind.NODE_LOST) -> None:
        """Give up what a node had, for good."""
        for handed in [self.handed[attempt] for attempt in attempts if attempt in self.handed]:
            if handed.is_open_on(node):
                handed.lost_on.add(node)
                self.take(node, TaskResult(handed.id, handed.epoch, Failure(kind, reason)))

    def lose_all_on(self, node: str, reason: str, kind: FailureKind = FailureKind.NODE_LOST) -> None:
        """Give up all that a node had."""
        self.lose([handed.id for handed in self.open_on(node)], node, reason, kind)

    def end(self, handed: Handed) -> None:
        """Have an attempt end wherever it has not."""
        handed.is_ending = True
        self._end_rest(handed)

    def end_gangs_on(self, node: str) -> None:
        """A node is gone, and its gangs with it, though it can't be said yet that nothing of it is left."""
        for handed in self.open_on(node):
            if len(handed.nodes) > 1:
                self.end(handed)

    def collect(self) -> list[TaskResult]:
        """Results that were not collected yet, of whole attempts."""
        found, self._done = self._done, []
        self._collected = [self.handed.pop(result.attempt) for result in found]
        return found

    def stored(self) -> Sequence[Handed]:
        """What the latest `collect` returned, once: it is stored by now."""
        found, self._collected = self._collected, ()
        return found
