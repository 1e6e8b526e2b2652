"""Whether a program has become slower, by as few runs as tell. Pure.

Wald's sequential probability ratio test (Sequential Tests of Statistical Hypotheses, Ann. Math. Statist. 16, 1945)
between "as before" and "slower by as much as the gate is to find". Each run moves the likelihood ratio: beyond one
bound it is as before; beyond the other it is slower, if it is also beyond the noise of the baseline. In between it is
measured again. The baseline is never the best run but the last level. Our own code: scipy does not have the test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from orchestrator.analysis.noise import Noise
from orchestrator.analysis.verdicts import Verdict

FALSE_ALARMS = 0.002  #: share of unchanged cells that may fail, were noise normal and known
MISSES = 0.02  #: share of cells that are slower by as much as is to be found that may pass, likewise
BEYOND = 4.0  #: times FALSE_ALARMS: how rare the noise is that a slower cell is beyond
MIN_RUNS_TO_FAIL = 2  #: what a single run says is measured once more


@dataclass(frozen=True)
class Baseline:
    """What a metric in one workload is compared with."""

    log_mean: float
    runs: int | None  #: that it is the mean of; None: a quoted number
    text: str  #: `the last good 9.62 ms (12 runs)`


@dataclass(frozen=True)
class SequentialResult:
    """The state of the test after some runs, with the slowdown as natural logarithms."""

    verdict: Verdict  #: SLOWER, EQUIVALENT (as before), INCONCLUSIVE, or UNJUDGED where there is no baseline
    runs: int
    is_last: bool = False  #: no more runs are allowed
    log_slowdown: float = 0.0
    log_low: float = 0.0  #: bounds of the slowdown
    log_high: float = 0.0

    @property
    def needs_more_runs(self) -> bool:
        """Whether another run is to be measured."""
        return self.verdict is Verdict.INCONCLUSIVE and not self.is_last


def sequential_test(
    excess: Sequence[float], baseline: Baseline, noise: Noise, slowdown_percent: float, max_runs: int, metrics: int
) -> SequentialResult:
    """Test the runs in their order, each the logarithm of its slowdown beside the baseline.

    `metrics` is how many are judged beside each other: a cell fails for any of them.
    """
    alpha = FALSE_ALARMS / metrics
    result = SequentialResult(Verdict.INCONCLUSIVE, 0)
    for count in range(1, len(excess) + 1):
        result = _after(excess[:count], baseline, noise, slowdown_percent, alpha, is_last=count >= max_runs)
        if not result.needs_more_runs:
            break
    return result


def _after(
    excess: Sequence[float], baseline: Baseline, noise: Noise, slowdown_percent: float, alpha: float, *, is_last: bool
) -> SequentialResult:
    from scipy.special import stdtrit  # imported late: only jobs with gates need it

    to_find, count, mean = math.log1p(slowdown_percent / 100), len(excess), fmean(excess)
    # One run that stands out is not believed; half of the runs are.
    believed = max(to_find + noise.sigma, median_low(excess) if count >= MIN_RUNS_TO_FAIL else 0.0)
    level = fmean(min(value, believed) for value in excess)
    error = noise.sigma * math.sqrt(1 / count + (1 / baseline.runs if baseline.runs else 0.0))
    half_width = -float(stdtrit(noise.degrees_of_freedom, BEYOND * alpha)) * error
    log_likelihood_ratio = to_find * (level - to_find / 2) / error**2
    is_beyond_noise = level > half_width and (count >= MIN_RUNS_TO_FAIL or is_last)
    if is_beyond_noise and (is_last or log_likelihood_ratio >= math.log((1 - MISSES) / alpha)):
        verdict = Verdict.SLOWER
    elif log_likelihood_ratio <= math.log(MISSES / (1 - alpha)):
        verdict = Verdict.EQUIVALENT
    else:
        verdict = Verdict.INCONCLUSIVE
    return SequentialResult(verdict, count, is_last, mean, mean - half_width, mean + half_width)
