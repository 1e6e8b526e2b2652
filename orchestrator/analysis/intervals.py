"""Confidence intervals of the ratio of two sets of runs.

A run, a process of its own, is one observation: the logarithm of the median of its repetitions. Repetitions within a
run share its memory layout and clocks, so they say how well this run is known and nothing about the next one.

The interval is the wider one of two. Student's is right for few runs and takes in earlier noise; the percentile
bootstrap over runs (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13), resampled within each
side and device, takes in how skewed they are, and is too narrow for few.

The formulas are written out because of what an import costs: scipy.special, imported when an interval is wanted, takes
half a second of CPU time, scipy.stats, which statsmodels builds on, one and a half. Tests hold the results against
scipy.stats.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.noise import Noise, sum_of_squares

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How often two sets of the same program may be called different: half of 1%, as runs have heavier tails than Student's
#: distribution.
ALPHA = 0.005
RESAMPLES = 2000
SEED = 0  #: the same runs have the same interval
MIN_RUNS_FOR_BOOTSTRAP = 8  #: of a side: the percentiles of fewer can't be as rare as ALPHA
MAX_RUNS_FOR_BOOTSTRAP = 200  #: of both sides: the mean of more is normal whatever they are
MAX_RUNS_NEEDED = 10_000

Stratum = tuple[Sequence[float], Sequence[float]]  #: logarithms of the old and new runs on one device
Draw = Callable[[Sequence[float]], "NDArray[Any]"]  #: the means of RESAMPLES resamples of values


@dataclass(frozen=True)
class RatioEstimate:
    """The estimated ratio of new to old, as natural logarithms."""

    log_ratio: float
    log_low: float
    log_high: float
    p_value: float
    sigma: float  #: standard deviation of the logarithm of one run
    degrees_of_freedom: float

    @property
    def ratio(self) -> float:
        """New divided by old."""
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of the ratio."""
        return math.exp(self.log_low), math.exp(self.log_high)

    @property
    def excludes_equality(self) -> bool:
        """Whether a ratio of 1 lies outside of the interval."""
        return not self.log_low <= 0 <= self.log_high


def stratified_estimate(strata: Sequence[Stratum], noise: Noise | None, alpha: float = ALPHA) -> RatioEstimate | None:
    """Estimate from runs that were not interleaved: each device is a stratum, compared only with itself.

    Differences of strata are weighted by the inverse of their variance. None where nothing tells how much runs vary.
    """
    weights = [1 / (1 / len(old) + 1 / len(new)) for old, new in strata]
    total = sum(weights)
    difference = sum(weight * (fmean(new) - fmean(old)) for weight, (old, new) in zip(weights, strata, strict=True))
    sides = [side for stratum in strata for side in stratum]
    squares, degrees_of_freedom = sum(map(sum_of_squares, sides)), sum(len(side) - 1 for side in sides)
    student = _student(difference / total, squares, degrees_of_freedom, 1 / math.sqrt(total), noise, alpha)
    runs = [sum(len(stratum[side]) for stratum in strata) for side in (0, 1)]
    if student is None or min(runs) < MIN_RUNS_FOR_BOOTSTRAP or sum(runs) > MAX_RUNS_FOR_BOOTSTRAP:
        return student

    def resampled(draw: Draw) -> Any:
        drawn = (weight * (draw(new) - draw(old)) for weight, (old, new) in zip(weights, strata, strict=True))
        return sum(drawn) / total

    return _widened(student, resampled, alpha)


def paired_estimate(log_ratios: Sequence[float], noise: Noise | None, alpha: float = ALPHA) -> RatioEstimate | None:
    """Estimate from interleaved runs, by the logarithm of each pair's ratio: drift that both share cancels out."""
    squares = sum_of_squares(log_ratios) / 2  # of one run: a pair has twice its variance
    scale = math.sqrt(2 / len(log_ratios))
    student = _student(fmean(log_ratios), squares, len(log_ratios) - 1, scale, noise, alpha)
    if student is None or len(log_ratios) < MIN_RUNS_FOR_BOOTSTRAP:
        return student
    return _widened(student, lambda draw: draw(log_ratios), alpha)


def runs_needed(estimate: RatioEstimate, log_margin: float, alpha: float = ALPHA) -> int:
    """Return how many runs of each side would have the interval exclude 1 or lie within the margin.

    The sample size of a two-sample z-test, plus a quarter of z squared for Student's wider tails (Guenther, Sample size
    formulas for normal theory t tests, The American Statistician 35, 1981).
    """
    from scipy.special import ndtri

    reach = max(abs(estimate.log_ratio), log_margin - abs(estimate.log_ratio), 1e-4)
    z = -float(ndtri(alpha / 2))
    return min(math.ceil(2 * (z * estimate.sigma / reach) ** 2 + z * z / 4), MAX_RUNS_NEEDED)


def benjamini_hochberg_threshold(p_values: Sequence[float], alpha: float = ALPHA) -> float:
    """Return the largest p-value that is significant at a false discovery rate of `alpha`; below 0 where none is.

    Benjamini and Hochberg, Controlling the false discovery rate, J. R. Statist. Soc. B 57 (1995). Our own two lines:
    scipy.stats and statsmodels take longer to import than the rest of the command takes.
    """
    significant = [p for rank, p in enumerate(sorted(p_values), 1) if p <= alpha * rank / len(p_values)]
    return max(significant, default=-1.0)


def _student(
    log_ratio: float, squares: float, degrees_of_freedom: float, scale: float, noise: Noise | None, alpha: float
) -> RatioEstimate | None:
    """Student's interval of a mean whose standard error is `scale` times the pooled deviation of runs and noise."""
    from scipy.special import stdtr, stdtrit

    if noise:
        squares += noise.degrees_of_freedom * noise.sigma**2
        degrees_of_freedom += noise.degrees_of_freedom
    if degrees_of_freedom <= 0:
        return None
    sigma = math.sqrt(squares / degrees_of_freedom)
    error = sigma * scale
    half_width = -float(stdtrit(degrees_of_freedom, alpha / 2)) * error
    p_value = 2 * float(stdtr(degrees_of_freedom, -abs(log_ratio) / error)) if error else float(log_ratio == 0)
    return RatioEstimate(log_ratio, log_ratio - half_width, log_ratio + half_width, p_value, sigma, degrees_of_freedom)


def _widened(student: RatioEstimate, resampled: Callable[[Draw], Any], alpha: float) -> RatioEstimate:
    """Widen an interval to the percentiles of the statistic over resampled runs."""
    import numpy

    random = numpy.random.default_rng(SEED)

    def draw(values: Sequence[float]) -> "NDArray[Any]":
        means: NDArray[Any] = numpy.asarray(values)[random.integers(len(values), size=(RESAMPLES, len(values)))].mean(
            axis=1
        )
        return means

    low, high = numpy.quantile(resampled(draw), (alpha / 2, 1 - alpha / 2))
    return replace(student, log_low=min(student.log_low, float(low)), log_high=max(student.log_high, float(high)))
