"""The attempts that a head holds: those that it started or adopted, and their cancellation."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from db.store import RunningAttempt, Snapshot, Store
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Attempt, Place, TaskResult
from orchestrator.executor import Executor
from orchestrator.leader.statistics import Statistics
from workers import daemon_log
from workers.attempts.attempt_log import log_end
from workers.failures import LostFile, of_lost

logger = daemon_log.logger(__name__)

LEASE_LOST = Failure(FailureKind.LEASE_LOST, "no process runs it any more")
NEVER_STARTED = Failure(FailureKind.REQUEUED, "it was not started: the head lost the database or the cluster then")


@dataclass
class HeldAttempts:
    """The attempts of one head. The database says what should run, the executor what does."""

    store: Store
    executor: Executor
    statistics: Statistics
    started: set[str] = field(default_factory=set)  #: all in the database; some were never dispatched
    _dispatched: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    _requeued: dict[str, str] = field(default_factory=dict)  #: why their nodes requeue them

    @property
    def dispatched(self) -> Collection[str]:
        """The attempts that were given to the executor."""
        return self._dispatched.keys()

    def adopt(self, running: Sequence[RunningAttempt]) -> None:
        """Adopt the attempts that an earlier leader started."""
        self.add_dispatched({attempt.id: attempt.places for attempt in running})
        self.started |= {attempt.id for attempt in running}

    def add_dispatched(self, places: Mapping[str, tuple[Place, ...]]) -> None:
        """Note attempts that the executor is given."""
        self._dispatched |= places

    def reconcile(self, snapshot: Snapshot) -> bool:
        """Cancel attempts as requested, and those that are no longer this head's; requeue those that no process runs.

        Returns whether a task changed its state.
        """
        in_flight = self.executor.in_flight()
        for stray in self._strays(snapshot):
            self._cancel(stray)
        for attempt in snapshot.running:
            if attempt.id in in_flight:
                self._cancel_if_requested(attempt, snapshot)
        gone = [attempt for attempt in snapshot.running if attempt.id not in in_flight]
        undispatched = [
            attempt for attempt in gone if attempt.id in self.started and attempt.id not in self._dispatched
        ]
        self.fail(undispatched, NEVER_STARTED)
        self.fail([attempt for attempt in gone if attempt not in undispatched], LEASE_LOST)
        return bool(gone)

    def cordoned_by_strays(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Return the nodes that take nothing until attempts that are no longer this head's have ended there."""
        strays = self._strays(snapshot)
        return {place.node: f"ends {stray} first" for stray in strays for place in self._dispatched.get(stray, ())}

    def fail(self, attempts: Sequence[RunningAttempt], failure: Failure) -> None:
        """End attempts without a result."""
        self.finish([TaskResult(attempt.id, attempt.epoch, failure) for attempt in attempts])

    def fail_undispatched(self, failures: Mapping[str, Failure], attempts: Mapping[str, Attempt]) -> None:
        """End those of the attempts that never ran."""
        self.finish([TaskResult(id_, attempts[id_].epoch, failure) for id_, failure in failures.items()])

    def fail_without_inputs(self, lost: Mapping[str, Sequence[LostFile]], attempts: Mapping[str, Attempt]) -> None:
        """End those of the attempts whose inputs the artifact store has lost."""
        self.finish(
            [
                TaskResult(id_, attempts[id_].epoch, of_lost(files), lost=tuple(file.artifact for file in files))
                for id_, files in lost.items()
            ]
        )

    def as_requeued(self, result: TaskResult) -> TaskResult:
        """Turn the cancellation of an attempt into a requeue if its node asked for it, not a user."""
        why = self._requeued.get(result.attempt)
        if why is None or result.failure is None or result.failure.kind is not FailureKind.CANCELLED:
            return result
        return replace(result, failure=Failure(FailureKind.REQUEUED, why))

    def finish(self, results: Sequence[TaskResult]) -> None:
        """Store results, log them, and forget their attempts."""
        if not results:
            return
        states = self.store.finish(results)
        for result in results:
            if result.attempt in states:
                self.statistics.ended(result)
                places = self._dispatched.get(result.attempt, ())
                nodes = "+".join(place.node for place in places) or "no node"
                log_end(logger, result, nodes, states[result.attempt])
        self._forget([result.attempt for result in results])

    def _forget(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self._dispatched.pop(attempt, None)
            self._requeued.pop(attempt, None)
            self.started.discard(attempt)
            self._cancelled.discard(attempt)

    def _strays(self, snapshot: Snapshot) -> set[str]:
        """Attempts in flight that another head, which led meanwhile, has ended in the database."""
        return self.executor.in_flight() - {attempt.id for attempt in snapshot.running}

    def _cancel_if_requested(self, attempt: RunningAttempt, snapshot: Snapshot) -> None:
        """Cancel an attempt that a user cancelled, or whose node requeues what it runs."""
        if attempt.state is TaskState.CANCELLING:
            self._cancel(attempt.id)
            return
        for place in attempt.places:
            if place.node in snapshot.requeuing:
                self._requeued[attempt.id] = f"node {place.node}: {snapshot.cordoned[place.node]}"
                self._cancel(attempt.id)

    def _cancel(self, attempt: str) -> None:
        if attempt not in self._cancelled:
            self._cancelled.add(attempt)
            self.executor.cancel(attempt)
