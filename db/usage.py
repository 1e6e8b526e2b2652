"""How much of the cluster each user had of late, for fair shares."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from jobs.task import Attempt

OF_LATE = timedelta(hours=24)
STEP = timedelta(minutes=10)  #: how exactly what is too long ago is forgotten
CORE_WEIGHT = 0.01  #: what a core counts for beside a device, where an attempt holds none


def weight_of(attempt: Attempt) -> float:
    """How many devices an attempt holds; without any, a little for its cores."""
    return len(attempt.devices) or CORE_WEIGHT * attempt.cpus * len(attempt.places)


class Usage:
    """Device seconds by user; those of an attempt count from its end on, as long as that is of late."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, user: str, started_at: datetime, ended_at: datetime, weight: float) -> None:
        """Count an attempt that has ended."""
        self._steps[_step(ended_at)][user] += device_seconds(started_at, ended_at, weight)

    def total(self, now: datetime, running: Iterable[tuple[str, float]] = ()) -> dict[str, float]:
        """What each user had; `running` is what attempts that have not ended had so far."""
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
    """What an attempt had of the cluster."""
    return max((until - started_at).total_seconds(), 0.0) * weight


def _step(at: datetime) -> int:
    return int(at.timestamp() // STEP.total_seconds())
