"""What a head runs: what it began or took over, what the executor has of it, and what was asked to end."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from db.store import RunningAttempt, Snapshot, Store
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Attempt, Place, TaskResult
from orchestrator.executor import Executor
from workers.failures import LostFile, of_lost

NOBODY_RUNS_IT = Failure(FailureKind.LEASE_LOST, "nobody runs it any more")
NEVER_STARTED = Failure(FailureKind.HANDED_BACK, "it was not started: the head lost the database or the cluster then")


@dataclass
class Running:
    """The attempts of one head. The database says what should run, the executor what does."""

    store: Store
    executor: Executor
    begun: set[str] = field(default_factory=set)  #: all of them; some were never handed over
    _handed: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    _asked_to_end: set[str] = field(default_factory=set)
    _given_back: dict[str, str] = field(default_factory=dict)  #: those whose node is handed back, and why

    @property
    def handed(self) -> Collection[str]:
        """The attempts that the executor was given."""
        return self._handed.keys()

    def take_over(self, known: Sequence[RunningAttempt]) -> None:
        """What an earlier leader began is this head's now."""
        self.hand({one.id: one.places for one in known})
        self.begun |= {one.id for one in known}

    def hand(self, places: Mapping[str, tuple[Place, ...]]) -> None:
        """The executor is given attempts."""
        self._handed |= places

    def tend(self, snapshot: Snapshot) -> bool:
        """End what was cancelled and what nobody waits for, and give up what nobody runs; whether a task moved."""
        here = self.executor.running()
        for stray in self._strays(snapshot):
            self._end(stray)
        for running in snapshot.running:
            if running.id in here:
                self._end_if_asked(running, snapshot)
        gone = [running for running in snapshot.running if running.id not in here]
        unstarted = [running for running in gone if running.id in self.begun and running.id not in self._handed]
        self.give_up(unstarted, NEVER_STARTED)
        self.give_up([running for running in gone if running not in unstarted], NOBODY_RUNS_IT)
        return bool(gone)

    def closed_by_strays(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Nodes beside whose strays nothing is to be started before those have ended."""
        strays = self._strays(snapshot)
        return {place.node: f"ends {stray} first" for stray in strays for place in self._handed.get(stray, ())}

    def give_up(self, attempts: Sequence[RunningAttempt], failure: Failure) -> None:
        """End attempts without a result."""
        self._finish([TaskResult(one.id, one.epoch, failure) for one in attempts])

    def end_early(self, ended: Mapping[str, Failure], attempts: Mapping[str, Attempt]) -> None:
        """End those of the attempts that never ran."""
        self._finish([TaskResult(one, attempts[one].epoch, failure) for one, failure in ended.items()])

    def end_without_inputs(self, lost: Mapping[str, Sequence[LostFile]], attempts: Mapping[str, Attempt]) -> None:
        """End those of the attempts that can't run, for the store lacks what they need."""
        self._finish(
            [
                TaskResult(one, attempts[one].epoch, of_lost(files), lost=tuple(file.artifact for file in files))
                for one, files in lost.items()
            ]
        )

    def as_handed_back(self, result: TaskResult) -> TaskResult:
        """Nobody cancelled what was ended for its node's sake."""
        why = self._given_back.get(result.attempt)
        if why is None or result.failure is None or result.failure.kind is not FailureKind.CANCELLED:
            return result
        return replace(result, failure=Failure(FailureKind.HANDED_BACK, why))

    def forget(self, attempts: Iterable[str]) -> None:
        """They have ended, and that is stored."""
        for attempt in attempts:
            self._handed.pop(attempt, None)
            self._given_back.pop(attempt, None)
            for held in (self.begun, self._asked_to_end):
                held.discard(attempt)

    def _strays(self, snapshot: Snapshot) -> set[str]:
        """What runs here and was given back by somebody else, who led meanwhile."""
        return self.executor.running() - {running.id for running in snapshot.running}

    def _end_if_asked(self, running: RunningAttempt, snapshot: Snapshot) -> None:
        """What was cancelled, and what is on a node whose work is handed back."""
        if running.state is TaskState.CANCELLING:
            self._end(running.id)
            return
        for place in running.places:
            if place.node in snapshot.handing_back:
                self._given_back[running.id] = f"node {place.node}: {snapshot.closed[place.node]}"
                self._end(running.id)

    def _end(self, attempt: str) -> None:
        if attempt not in self._asked_to_end:
            self._asked_to_end.add(attempt)
            self.executor.cancel(attempt)

    def _finish(self, results: Sequence[TaskResult]) -> None:
        if results:
            self.store.finish(results)
            self.forget([result.attempt for result in results])
