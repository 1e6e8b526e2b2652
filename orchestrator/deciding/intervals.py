"""How far two sets of runs are apart, and where that lies.

A run, a process of its own, is one observation: the logarithm of the median of its repetitions. Repetitions within a
run share its fate (memory layout, clocks), so that they say how well this run is known and nothing of the next one.

The interval is the wider one of two. Student's is right for few runs and knows earlier noise; the bootstrap over runs
(percentiles, within each side and device) sees how skewed they are, and is too narrow for few.

scipy.special is imported when an interval is asked for, and scipy.stats, which takes four times as long, never: tests
hold the intervals against it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALPHA = (
    0.005  #: how often two sets of the same may be told apart: half of 1 %, for runs have heavier tails than Student
)
RESAMPLES = 2000
SEED = 0  #: the same runs have the same interval
LEAST_FOR_BOOTSTRAP = 8  #: runs of a side: the percentiles of fewer can't be as rare as ALPHA
MOST_FOR_BOOTSTRAP = 200  #: of both together: the mean of more is normal whatever they are
MOST_RUNS = 10_000  #: more are not asked for

Sides = tuple[Sequence[float], Sequence[float]]  #: logarithms of the runs of the old and the new


@dataclass(frozen=True)
class Noise:
    """How runs of the same scatter: the standard deviation of their logarithms, and of how many it is known."""

    sigma: float
    freedom: float  #: runs beyond the first of each group that were alike


@dataclass(frozen=True)
class Estimate:
    """The logarithm of new over old."""

    log: float
    low: float
    high: float
    p: float  #: how often as much would be found where there is no difference
    sigma: float  #: of a run
    scale: float  #: the standard error is sigma times this
    freedom: float

    @property
    def ratio(self) -> float:
        """How many times as large the new is as the old."""
        return math.exp(self.log)

    @property
    def interval(self) -> tuple[float, float]:
        """Where that lies."""
        return math.exp(self.low), math.exp(self.high)


def of_strata(strata: Sequence[Sides], noise: Noise | None, alpha: float = ALPHA) -> Estimate | None:
    """Of runs that were not taken in turns: each stratum is a device, and is compared with itself alone.

    None where nothing tells how runs scatter.
    """
    weights = [1 / (1 / len(old) + 1 / len(new)) for old, new in strata]
    total = sum(weights)
    log = sum(weight * (fmean(new) - fmean(old)) for weight, (old, new) in zip(weights, strata, strict=True)) / total
    sides = [side for pair in strata for side in pair]
    scatter = sum(map(_scatter, sides))
    found = _student(log, scatter, sum(len(side) - 1 for side in sides), 1 / math.sqrt(total), noise, alpha)
    counts = [sum(len(pair[side]) for pair in strata) for side in (0, 1)]
    if found is None or min(counts) < LEAST_FOR_BOOTSTRAP or sum(counts) > MOST_FOR_BOOTSTRAP:
        return found

    def resampled(draw: "Callable[[Sequence[float]], NDArray[Any]]") -> Any:
        drawn = (weight * (draw(new) - draw(old)) for weight, (old, new) in zip(weights, strata, strict=True))
        return sum(drawn) / total

    return _widened(found, resampled, alpha)


def of_pairs(logs: Sequence[float], noise: Noise | None, alpha: float = ALPHA) -> Estimate | None:
    """Of runs taken in turns, by the logarithms of each pair's ratio: what both share does not count."""
    scatter = _scatter(logs) / 2  # of one run: a pair has twice its variance
    found = _student(fmean(logs), scatter, len(logs) - 1, math.sqrt(2 / len(logs)), noise, alpha)
    if found is None or len(logs) < LEAST_FOR_BOOTSTRAP:
        return found
    return _widened(found, lambda draw: draw(logs), alpha)


def runs_needed(found: Estimate, margin: float, alpha: float = ALPHA) -> int:
    """How many runs a side would have the interval exclude 1, or lie within the margin, if all goes on so."""
    reach = max(abs(found.log), margin - abs(found.log), 1e-4)
    from scipy.special import ndtri

    z = -float(ndtri(alpha / 2))
    first = 2 * (z * found.sigma / reach) ** 2
    return min(math.ceil(first + z * z / 4), MOST_RUNS)  # Student's tails take a quarter of z squared more


def false_discovery_limit(ps: Sequence[float], alpha: float = ALPHA) -> float:
    """The p-value up to which comparisons made at once are told apart, by Benjamini and Hochberg's procedure (1995)."""
    passing = [p for rank, p in enumerate(sorted(ps), 1) if p <= alpha * rank / len(ps)]
    return max(passing, default=-1.0)


def _scatter(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)


def _student(
    log: float, scatter: float, freedom: float, scale: float, noise: Noise | None, alpha: float
) -> Estimate | None:
    """Of a mean, by the pooled variance of the runs and of earlier ones."""
    from scipy.special import stdtr, stdtrit

    known = noise.freedom if noise else 0.0
    if freedom + known <= 0:
        return None
    variance = (scatter + (known * noise.sigma**2 if noise else 0.0)) / (freedom + known)
    error = math.sqrt(variance) * scale
    half = -float(stdtrit(freedom + known, alpha / 2)) * error
    p = 2 * float(stdtr(freedom + known, -abs(log) / error)) if error else float(log == 0)
    return Estimate(log, log - half, log + half, p, math.sqrt(variance), scale, freedom + known)


def _widened(found: Estimate, resampled: "Callable[[Callable[[Sequence[float]], Any]], Any]", alpha: float) -> Estimate:
    """By the percentiles of the statistic over resampled runs."""
    import numpy

    random = numpy.random.default_rng(SEED)

    def draw(values: Sequence[float]) -> Any:
        return numpy.asarray(values)[random.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)

    low, high = numpy.quantile(resampled(draw), (alpha / 2, 1 - alpha / 2))
    return Estimate(
        found.log,
        min(found.low, float(low)),
        max(found.high, float(high)),
        found.p,
        found.sigma,
        found.scale,
        found.freedom,
    )
