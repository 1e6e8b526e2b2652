"""Tasks that no node had room for after all are left alone for a while, which doubles each time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from orchestrator.scheduler import Action, Start, Wait

FIRST_S = 0.5
LONGEST_S = 30.0


@dataclass(frozen=True)
class HoldOff:
    """Why a task is left alone, and until when."""

    reason: str
    pause_s: float
    until: float


class HoldOffs:
    """Without them a refused task would be begun and given back in every step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, HoldOff] = {}  #: by task
        self._applied_at = 0.0

    def note(self, task: str, reason: str | None) -> None:
        """A task was refused for a reason, or for none: then it runs."""
        last = self._held.pop(task, None)
        if reason is not None:
            pause_s = min(2 * last.pause_s, LONGEST_S) if last else FIRST_S
            self._held[task] = HoldOff(reason, pause_s, self._clock() + pause_s)

    def apply(self, actions: Iterable[Action]) -> list[Action]:
        """The actions without the starts of tasks that are left alone: those wait."""
        now = self._applied_at = self._clock()
        return [self._held_off(action, now) if isinstance(action, Start) else action for action in actions]

    def next_at(self) -> float:
        """When the next one ends of those that were in force when they were applied."""
        return min((held.until for held in self._held.values() if held.until > self._applied_at), default=inf)

    def keep(self, tasks: Iterable[str]) -> None:
        """Forget the tasks that are not among these: they wait for nothing any more."""
        if self._held:
            live = set(tasks)
            self._held = {task: held for task, held in self._held.items() if task in live}

    def _held_off(self, start: Start, now: float) -> Action:
        held = self._held.get(start.task.id)
        return Wait(start.task, held.reason, is_stuck=False) if held and now < held.until else start
