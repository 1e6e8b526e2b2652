"""Pauses between tries that grow, for loops that do other things meanwhile and can be woken.

Where a thread has nothing else to do than to try a call again, tenacity does that.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from `first_s` up to `max_s`."""

    first_s: float
    max_s: float

    def pause_s(self, failures: int) -> float:
        """Return the pause after so many failures in a row, at least one."""
        return float(min(self.first_s * 2 ** min(failures - 1, 32), self.max_s))
