"""How far two sets of timings are apart: ratios with bootstrap intervals. scipy is imported when one is asked for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0  #: the same samples have the same interval


@dataclass(frozen=True)
class Ratio:
    """How many times as large the new is as the old, and where that lies with CONFIDENCE."""

    value: float
    low: float
    high: float
    has_interval: bool = True  #: single samples have none: `low` and `high` are the value


def ratio_of_medians(old: Sequence[float], new: Sequence[float]) -> Ratio | None:
    """Of two unpaired sets; None where a value is not above 0, which has no logarithm."""
    if min(*old, *new) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (old, new)]
    distance = median(logs[1]) - median(logs[0])
    if len(old) < 2 or len(new) < 2:
        return _ratio(distance, distance, distance, has_interval=False)
    return _ratio(distance, *_interval(logs, lambda before, after: median(after) - median(before)))


def ratio_of_pairs(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Of (old, new) measured in turns under the same circumstances: the geometric mean of their ratios."""
    if min(min(pair) for pair in pairs) <= 0:
        return None
    logs = [math.log(new / old) for old, new in pairs]
    distance = fmean(logs)
    if len(logs) < 2:
        return _ratio(distance, distance, distance, has_interval=False)
    return _ratio(distance, *_interval([logs], fmean))


def spread(medians: Sequence[float]) -> float | None:
    """The standard deviation of the logarithms of several runs' medians; None for fewer than three runs."""
    return stdev(math.log(value) for value in medians) if len(medians) > 2 and min(medians) > 0 else None


def _interval(samples: Sequence[Sequence[float]], statistic: Callable[..., float]) -> tuple[float, float]:
    """By the percentile method: BCa, scipy's own choice, is not defined where samples are equal."""
    from scipy.stats import bootstrap

    found = bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=False,
        rng=SEED,
    ).confidence_interval
    return float(found.low), float(found.high)


def _ratio(distance: float, low: float, high: float, *, has_interval: bool = True) -> Ratio:
    return Ratio(math.exp(distance), math.exp(low), math.exp(high), has_interval)
