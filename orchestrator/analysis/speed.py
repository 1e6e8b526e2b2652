"""How fast each device is beside its peers at equal work: chips of one kind differ, and a sick one stands out. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from db.reads.runs import MeasuredRun
from jobs.metrics import METRICS
from orchestrator.analysis.noise import learn_noise

SPEED_METRICS = ("ttft_ms", "itl_ms")
MAX_MEASUREMENTS = 2000  #: the newest, which speeds are computed from
SLOW_PERCENT = 3.0  #: a device is slow if it is slower than its peers by more, beyond CONFIDENT_ERRORS
CONFIDENT_ERRORS = 2.6  #: standard errors: 99.5% one-sided of a normal distribution


@dataclass(frozen=True)
class DeviceSpeed:
    """The speed of one device, over all the work that it shares with peers."""

    index: float  #: 1: as fast as the median of its peers; 0.9: takes 1/0.9 of their time
    runs: int
    is_slow: bool


def device_speeds(runs: Sequence[MeasuredRun]) -> dict[str, DeviceSpeed]:
    """Return speeds by place, for single devices that did the same work as another one."""
    noise_model = learn_noise(runs)
    leads: dict[str, list[tuple[float, float]]] = defaultdict(list)  # log of how much faster, standard error
    run_counts: dict[str, int] = defaultdict(int)
    for by_place in _equal_work(runs).values():
        log_times = {place: median(_log_time(run) for run in place_runs) for place, place_runs in by_place.items()}
        for place, place_runs in by_place.items():
            peers = [log_time for other, log_time in log_times.items() if other != place]
            noise = noise_model.noise_of(place_runs[0])
            if peers and noise:
                error = noise.sigma * math.sqrt(1 / len(place_runs) + 1 / len(peers))
                leads[place].append((median(peers) - log_times[place], error))
                run_counts[place] += len(place_runs)
    return {place: _device_speed(device_leads, run_counts[place]) for place, device_leads in leads.items()}


def _equal_work(runs: Iterable[MeasuredRun]) -> dict[tuple[Any, ...], dict[str, list[MeasuredRun]]]:
    """Group runs on single devices by the work that was done, then by place."""
    work: dict[tuple[Any, ...], dict[str, list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.median > 0 and "+" not in run.place:
            key = (run.variant.partition("@")[0], run.target, run.metric, run.workload, run.program)
            work[key][run.place].append(run)
    return work


def _log_time(run: MeasuredRun) -> float:
    return math.log(run.median) * (1 if METRICS[run.metric].is_lower_better else -1)


def _device_speed(leads: Sequence[tuple[float, float]], runs: int) -> DeviceSpeed:
    """Combine a device's leads: they share what is wrong with it, not their noise."""
    lead = median(lead for lead, _ in leads)
    error = median(error for _, error in leads) / math.sqrt(len(leads))
    is_slow = lead + CONFIDENT_ERRORS * error < math.log1p(-SLOW_PERCENT / 100)
    return DeviceSpeed(math.exp(lead), runs, is_slow)


def place_name(node: str, device: Any, host_kind: str) -> str:
    """Return the place of runs on this device alone, as `db.reads.runs` names it."""
    return device.serial or (node if device.kind == host_kind else f"{node}/{device.kind}:{device.index}")


def slowness_text(name: str, speed: DeviceSpeed) -> str:
    """`mi300x:3 is slower than its peers by 9% (23 runs)`."""
    return f"{name} is slower than its peers by {100 * (1 / speed.index - 1):.0f}% ({speed.runs} runs)"


def speed_range(speeds: Mapping[str, DeviceSpeed]) -> str:
    """`0.92 (mi300x:3) to 1.01`, of speeds by device name; empty where there are none."""
    if not speeds:
        return ""
    slowest = min(speeds, key=lambda name: speeds[name].index)
    low, high = (f"{index:.2f}" for index in (speeds[slowest].index, max(speed.index for speed in speeds.values())))
    return low if low == high else f"{low} ({slowest}) to {high}"
