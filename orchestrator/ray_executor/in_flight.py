"""Attempts that were dispatched, and results that wait to be collected."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from db.store import RunningAttempt
from jobs.state import Failure, FailureKind
from jobs.task import TaskResult
from orchestrator.ray_executor.gangs import merge_results


@dataclass
class InFlightAttempt:
    """An attempt on its node, or on the nodes of a gang, and their results so far."""

    id: str
    epoch: int
    nodes: Sequence[str]  #: by rank
    group: str | None = None  #: the placement group that holds its devices
    is_cancelled: bool = False
    started_on: set[str] = field(default_factory=set)  #: nodes that confirmed it; others can't cancel it yet
    results: dict[str, TaskResult] = field(default_factory=dict)  #: by node, as they came
    lost_on: set[str] = field(default_factory=set)  #: nodes that are lost, whose results were made up

    def is_open_on(self, node: str) -> bool:
        """Whether a node's result is missing."""
        return node in self.nodes and node not in self.results

    @property
    def open_nodes(self) -> Sequence[str]:
        """The nodes whose results are missing."""
        return [node for node in self.nodes if node not in self.results]


class InFlightAttempts:
    """Where the attempts of a head are, and their results until these are stored."""

    def __init__(
        self, cancel_rest: Callable[[InFlightAttempt], None], release: Callable[[InFlightAttempt], None]
    ) -> None:
        """`cancel_rest` cancels an attempt on its open nodes; `release` frees what an attempt held that ended
        everywhere."""
        self._cancel_rest, self._release = cancel_rest, release
        self.by_id: dict[str, InFlightAttempt] = {}  #: those that are not collected yet
        self._results: list[TaskResult] = []
        self._collected: Sequence[InFlightAttempt] = ()  #: by the latest `collect`

    @property
    def has_results(self) -> bool:
        """Whether `collect` will return a result."""
        return bool(self._results)

    @property
    def nodes(self) -> set[str]:
        """The nodes whose results are missing."""
        return {node for attempt in self.by_id.values() for node in attempt.open_nodes}

    def adopt(self, known: Sequence[RunningAttempt]) -> None:
        """Replace everything by the attempts that an earlier head dispatched."""
        self.by_id = {
            attempt.id: InFlightAttempt(attempt.id, attempt.epoch, [place.node for place in attempt.places])
            for attempt in known
        }
        self._results, self._collected = [], ()

    def open_on(self, node: str) -> list[InFlightAttempt]:
        """Return the attempts whose result of this node is missing."""
        return [attempt for attempt in self.by_id.values() if attempt.is_open_on(node)]

    def expected(self, node: str) -> Mapping[str, int]:
        """Return the epochs of the attempts that a node should have, also of those whose results are not stored."""
        unstored = [*self.by_id.values(), *self._collected]
        return {
            attempt.id: attempt.epoch for attempt in unstored if node in attempt.nodes and node not in attempt.lost_on
        }

    def is_stored(self, attempt: str) -> bool:
        """Whether an attempt's result is stored, so that its nodes may forget it."""
        return attempt not in self.by_id and all(collected.id != attempt for collected in self._collected)

    def add_result(self, node: str, result: TaskResult) -> bool:
        """Add a node's result; return False if it is not expected. The failure of one node cancels a gang."""
        attempt = self.by_id.get(result.attempt)
        if attempt is None or not attempt.is_open_on(node) or attempt.epoch != result.epoch:
            return False
        attempt.results[node] = result
        if not attempt.open_nodes:
            self._results.append(merge_results(attempt.nodes, attempt.results, attempt.lost_on))
            self._release(attempt)
        elif result.failure:
            self.cancel(attempt)
        return True

    def lose(self, attempts: Iterable[str], node: str, reason: str, kind: FailureKind = FailureKind.NODE_LOST) -> None:
        """Fail attempts on a node for good."""
        for attempt in [self.by_id[id_] for id_ in attempts if id_ in self.by_id]:
            if attempt.is_open_on(node):
                attempt.lost_on.add(node)
                self.add_result(node, TaskResult(attempt.id, attempt.epoch, Failure(kind, reason)))

    def lose_all_on(self, node: str, reason: str, kind: FailureKind = FailureKind.NODE_LOST) -> None:
        """Fail all attempts on a node for good."""
        self.lose([attempt.id for attempt in self.open_on(node)], node, reason, kind)

    def cancel(self, attempt: InFlightAttempt) -> None:
        """Cancel an attempt on its open nodes."""
        attempt.is_cancelled = True
        self._cancel_rest(attempt)

    def cancel_gangs_on(self, node: str) -> None:
        """Cancel the gangs of a node that is gone, although its processes may still live."""
        for attempt in self.open_on(node):
            if len(attempt.nodes) > 1:
                self.cancel(attempt)

    def collect(self) -> list[TaskResult]:
        """Return the results of attempts that ended everywhere since the last call."""
        results, self._results = self._results, []
        self._collected = [self.by_id.pop(result.attempt) for result in results]
        return results

    def take_stored(self) -> Sequence[InFlightAttempt]:
        """Return, once, what the latest `collect` returned: it is stored by now."""
        collected, self._collected = self._collected, ()
        return collected
