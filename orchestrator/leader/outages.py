"""Riding out what is unreachable for a while: a database that restarts, a full disk, a cluster that is away."""

import time
from collections.abc import Callable

from jobs.errors import Unreachable
from orchestrator.backoff import Backoff
from orchestrator.formatting import format_duration

Report = Callable[[str], object]

BACKOFF = Backoff(first_s=0.1, max_s=5.0)


class OutageReporter:
    """Reports the begin and the end of an outage once each, and paces the tries meanwhile."""

    def __init__(
        self,
        warn: Report,
        report: Report,
        limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`warn` is called with the begin, `report` with the end. An outage longer than `limit_s` is raised."""
        self._warn, self._report, self._limit_s, self._clock = warn, report, limit_s, clock
        self._since: float | None = None
        self._what = ""
        self._failures = 0

    def failed(self, error: Unreachable) -> float:
        """Report a failed try; return how long to pause before the next one. Raises the error after the limit."""
        now = self._clock()
        if self._since is None:
            self._since = now
        elif self._limit_s is not None and now - self._since > self._limit_s:
            raise error
        self._failures += 1
        if self._what != error.what:
            self._what = error.what
            self._warn(f"{error}; trying again")
        return BACKOFF.pause_s(self._failures)

    def recovered(self) -> None:
        """Report that everything is reachable."""
        if self._since is not None:
            self._report(f"{self._what} is reachable again, after {format_duration(self._clock() - self._since)}")
            self._since, self._what, self._failures = None, "", 0
