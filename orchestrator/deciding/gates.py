"""Whether a program has become slower: as few runs as tell, by a sequential test. Pure.

Wald's test (1945) between "as before" and "slower by as much as the gate is to find". Each run moves the likelihood
ratio; beyond one bound it passes, beyond the other one it fails if it is also beyond the noise of what it is compared
with. In between it is measured again. What is compared with is never the best run but the last level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median_low

from orchestrator.deciding.intervals import Noise

FALSE_ALARMS = 0.002  #: of cells in which nothing changed the share that may fail, were noise normal and known
MISSES = 0.02  #: of cells that are slower by as much as is to be found the share that may pass, likewise
BEYOND = 4.0  #: times FALSE_ALARMS: how rare the noise is that a red cell is beyond
LEAST_FOR_RED = 2  #: runs: what one alone says is looked at once more


class Ruling(StrEnum):
    """What a gate says of one metric."""

    PASSES = "passes"
    FAILS = "fails"
    UNSURE = "unsure"


@dataclass(frozen=True)
class Reference:
    """What a metric in one workload is held against."""

    log: float  #: the mean of the logarithms
    runs: int | None  #: that tell it; None: it is a quoted number
    words: str  #: `the last good 9.62 ms (12 runs)`


@dataclass(frozen=True)
class Ruled:
    """A ruling, and by how much it is slower: natural logarithms."""

    ruling: Ruling
    runs: int
    slower: float = 0.0
    low: float = 0.0  #: where that lies
    high: float = 0.0
    is_told: bool = True  #: by the runs; else it passes because there were to be no more of them


def rule(
    excess: Sequence[float], reference: Reference, noise: Noise, slowdown_percent: float, runs_most: int, metrics: int
) -> Ruled:
    """By the runs so far, each as the logarithm of how many times as slow it is as the reference.

    `metrics` is how many are judged beside each other: a cell fails for any of them.
    """
    alpha = FALSE_ALARMS / metrics
    ruled = Ruled(Ruling.UNSURE, 0)
    for count in range(1, len(excess) + 1):
        ruled = _rule(excess[:count], reference, noise, slowdown_percent, count >= runs_most, alpha)
        if ruled.ruling is not Ruling.UNSURE:
            break
    return ruled


def _rule(
    excess: Sequence[float], reference: Reference, noise: Noise, slowdown_percent: float, is_last: bool, alpha: float
) -> Ruled:
    from scipy.special import stdtrit  # takes a while, and only jobs with gates ask for it

    found, count, middle = math.log1p(slowdown_percent / 100), len(excess), fmean(excess)
    believed = max(found + noise.sigma, median_low(excess) if count >= LEAST_FOR_RED else 0.0)
    level = fmean(min(value, believed) for value in excess)  # one run that stands out is not believed; half of them are
    error = noise.sigma * math.sqrt(1 / count + (1 / reference.runs if reference.runs else 0.0))
    half = -float(stdtrit(noise.freedom, BEYOND * alpha)) * error
    evidence = found * (level - found / 2) / error**2
    is_beyond = level > half and (count >= LEAST_FOR_RED or is_last)
    is_as_before = evidence <= math.log(MISSES / (1 - alpha))
    if is_beyond and (evidence >= math.log((1 - MISSES) / alpha) or is_last):
        ruling = Ruling.FAILS
    elif is_last or is_as_before:
        ruling = Ruling.PASSES
    else:
        ruling = Ruling.UNSURE
    return Ruled(
        ruling, count, middle, middle - half, middle + half, is_told=ruling is not Ruling.PASSES or is_as_before
    )
