"""How fast each device is beside its peers at equal work: chips of one kind differ, and a sick one stands out. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from db.runs import Run
from jobs.metrics import METRICS
from orchestrator.deciding.noise import learned

METRICS_OF_SPEED = ("ttft_ms", "itl_ms")
NEWEST = 2000  #: measurements that are looked at
SLOW_PERCENT = 3.0  #: a device that is slower than its peers by surely more is called slow
SURE = 2.6  #: standard errors


@dataclass(frozen=True)
class Speed:
    """Of one device, over all the work that it shares with peers."""

    index: float  #: 1: as fast as the median of its peers; 0.9: takes 1/0.9 of their time
    runs: int
    is_slow: bool


def speeds(runs: Sequence[Run]) -> dict[str, Speed]:
    """By place; only of single devices that did the same work as another one."""
    noises = learned(runs)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for group in _equal_work(runs).values():
        middles = {place: median(_log(run) for run in own) for place, own in group.items()}
        for place, own in group.items():
            peers = [middle for other, middle in middles.items() if other != place]
            noise = noises.of(own[0])
            if peers and noise:
                error = noise.sigma * math.sqrt(1 / len(own) + 1 / len(peers))
                found[place].append((median(peers) - middles[place], error))
                counts[place] += len(own)
    return {place: _speed(ahead, counts[place]) for place, ahead in found.items()}


def _equal_work(runs: Iterable[Run]) -> dict[tuple[Any, ...], dict[str, list[Run]]]:
    """By what was done, by place."""
    found: dict[tuple[Any, ...], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.median > 0 and "+" not in run.place:
            work = (run.variant.partition("@")[0], run.target, run.metric, run.workload, run.program)
            found[work][run.place].append(run)
    return found


def _log(run: Run) -> float:
    return math.log(run.median) * (1 if METRICS[run.metric].is_lower_better else -1)


def _speed(ahead: Sequence[tuple[float, float]], runs: int) -> Speed:
    """Works of one device share what is wrong with it, not their noise."""
    middle = median(log for log, _ in ahead)
    error = median(error for _, error in ahead) / math.sqrt(len(ahead))
    is_slow = middle + SURE * error < math.log1p(-SLOW_PERCENT / 100)
    return Speed(math.exp(middle), runs, is_slow)


def place_of(node: str, device: Any, host_kind: str) -> str:
    """What runs on a device alone call it, as `db.runs` does."""
    return device.serial or (node if device.kind == host_kind else f"{node}/{device.kind}:{device.index}")


def in_words(name: str, speed: Speed) -> str:
    """`mi300x:3 is slower than its peers by 9% (23 runs)`."""
    return f"{name} is slower than its peers by {100 * (1 / speed.index - 1):.0f}% ({speed.runs} runs)"


def ranged(found: Mapping[str, Speed]) -> str:
    """By device name: `0.92 (mi300x:3) to 1.01`."""
    if not found:
        return ""
    name = min(found, key=lambda name: found[name].index)
    low, high = (f"{index:.2f}" for index in (found[name].index, max(speed.index for speed in found.values())))
    return low if low == high else f"{low} ({name}) to {high}"
