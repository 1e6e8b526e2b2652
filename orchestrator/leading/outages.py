"""Riding out what can't be reached for a while: a restarted database, a full disk, a cluster that is away."""

import time
from collections.abc import Callable

from jobs.errors import Unreachable
from orchestrator.output import seconds

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class Outages:
    """Says once what is wrong and once that it is over; pauses grow meanwhile, and have a bound."""

    def __init__(
        self, say: Callable[[str], None], limit_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """What lasts longer than `limit_s` is raised; None: nothing is."""
        self._say, self._limit_s, self._clock = say, limit_s, clock
        self._since: float | None = None
        self._what = ""
        self._pause_s = FIRST_PAUSE_S

    def note(self, error: Unreachable) -> float:
        """Something can't be reached; how long to pause before the next try. Raises the error when it lasts."""
        now = self._clock()
        if self._since is None:
            self._since, self._pause_s = now, FIRST_PAUSE_S
        elif self._limit_s is not None and now - self._since > self._limit_s:
            raise error
        else:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if self._what != error.what:
            self._what = error.what
            self._say(f"{error}; trying again")
        return self._pause_s

    def end(self) -> None:
        """Everything can be reached."""
        if self._since is not None:
            self._say(f"{self._what} can be used again, after {seconds(self._clock() - self._since)}")
            self._since, self._what = None, ""
