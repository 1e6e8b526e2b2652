"""Backoff of tasks that no node accepted although the scheduler had placed them, or that the artifact store failed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from orchestrator.backoff import Backoff
from orchestrator.scheduler.decision import Action, Start, Wait

BACKOFF = Backoff(first_s=0.5, max_s=30.0)


@dataclass(frozen=True)
class _Refusal:
    reason: str
    failures: int  #: in a row
    until: float


class TaskBackoff:
    """Delays refused tasks, which would otherwise be started and requeued in every step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refusals: dict[str, _Refusal] = {}  #: by task
        self._store_faults: dict[str, int] = {}  #: by task: attempts in a row that ended because of the store
        self._applied_at = 0.0

    def note(self, task: str, reason: str | None) -> None:
        """Note why a task was refused, or with None that it runs."""
        earlier = self._refusals.pop(task, None)
        if reason is not None:
            failures = earlier.failures + 1 if earlier else 1
            self._refusals[task] = _Refusal(reason, failures, self._clock() + BACKOFF.pause_s(failures))

    def apply(self, actions: Iterable[Action]) -> list[Action]:
        """Replace the starts of delayed tasks by waits."""
        now = self._applied_at = self._clock()
        return [self._delay(action, now) if isinstance(action, Start) else action for action in actions]

    def next_at(self) -> float:
        """Return when the first delay ends, of those in force when they were last applied."""
        ends = (refusal.until for refusal in self._refusals.values() if refusal.until > self._applied_at)
        return min(ends, default=inf)

    def note_store_fault(self, task: str, reason: str) -> None:
        """Note that an attempt of the task ended because of the artifact store; pauses grow from one to the next."""
        failures = self._store_faults[task] = self._store_faults.get(task, 0) + 1
        self._refusals[task] = _Refusal(reason, failures, self._clock() + BACKOFF.pause_s(failures))

    def retain(self, queued: Iterable[str], running: Iterable[str] = ()) -> None:
        """Forget all tasks but these."""
        if self._refusals or self._store_faults:
            queued = set(queued)
            live = queued.union(running)
            self._refusals = {task: refusal for task, refusal in self._refusals.items() if task in queued}
            self._store_faults = {task: count for task, count in self._store_faults.items() if task in live}

    def _delay(self, start: Start, now: float) -> Action:
        refusal = self._refusals.get(start.task.id)
        if refusal is None or now >= refusal.until:
            return start
        return Wait(start.task, refusal.reason, is_unschedulable=False)
