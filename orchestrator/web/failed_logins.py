"""How many wrong tokens came from where."""

import time
from collections.abc import Callable
from threading import Lock

MAX_FAILURES = 10  #: of an address in a window; further ones are told to wait
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000


class FailedLogins:
    """Counts the wrong tokens of each address in windows of a minute. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._begin = clock()
        self._counts: dict[str, int] = {}

    def record(self, address: str) -> int:
        """Count a wrong token; return how many seconds the address has to wait, 0 if it need not."""
        with self._lock:
            now = self._clock()
            if now - self._begin >= WINDOW_S or len(self._counts) >= MAX_ADDRESSES:
                self._begin, self._counts = now, {}
            self._counts[address] = self._counts.get(address, 0) + 1
            return round(self._begin + WINDOW_S - now) + 1 if self._counts[address] > MAX_FAILURES else 0
