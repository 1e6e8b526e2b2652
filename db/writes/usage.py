"""The recent usage of each user, for fair shares."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from jobs.task import Attempt

OF_LATE = timedelta(hours=24)
STEP = timedelta(minutes=10)  #: resolution at which old usage is dropped
CORE_WEIGHT = 0.01  #: devices that a core counts for in an attempt without devices


def weight_of(attempt: Attempt) -> float:
    """Return how many devices an attempt counts for: those that it holds, or a fraction for its cores."""
    return len(attempt.devices) or CORE_WEIGHT * attempt.cpus * len(attempt.places)


class Usage:
    """Recent device seconds by user; those of an attempt count from its end on, for `OF_LATE`."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, user: str, ended_at: datetime, used_device_s: float) -> None:
        """Count an attempt that has ended."""
        self._steps[_step(ended_at)][user] += used_device_s

    def total(self, now: datetime, running: Iterable[tuple[str, float]] = ()) -> dict[str, float]:
        """Return the device seconds of each user; `running` holds those of running attempts so far."""
        for old in [step for step in self._steps if step < _step(now - OF_LATE)]:
            del self._steps[old]
        total: dict[str, float] = defaultdict(float)
        for used in self._steps.values():
            for user, seconds in used.items():
                total[user] += seconds
        for user, seconds in running:
            total[user] += seconds
        return dict(total)


def device_seconds(started_at: datetime, until: datetime, weight: float) -> float:
    """Return the device seconds of an attempt."""
    return max((until - started_at).total_seconds(), 0.0) * weight


def _step(at: datetime) -> int:
    return int(at.timestamp() // STEP.total_seconds())
