"""How much runs of the same program vary on one device: learned from earlier runs, with a published prior. Pure.

The noise of a series is the pooled standard deviation of the logarithms of its runs' medians, within groups of runs
between which nothing changed (A/A runs). Where fewer than ENOUGH_DEGREES_OF_FREEDOM are known, a prior is pooled with
them as if it were PRIOR_DEGREES_OF_FREEDOM more, the fewer the more are known: the posterior variance under a scaled
inverse chi-squared prior (Gelman et al., Bayesian Data Analysis, 3rd ed., section 2.6).

The prior is the noisiest that was ever seen of the metric on that kind of device with that engine, in this database or
in what is published. Percentiles, first generations and whole generations vary otherwise than the medians of prefill
and decode that are published: without a history nothing is known of them.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from db.reads.runs import MeasuredRun
from jobs.metrics import METRICS

#: The standard deviation of the medians of A/A runs, relative to their mean, where no runs are known. Published for
#: MI325 in CI: about 2.5% for decode, 0.8 to 2% for prefill; logical CPU devices share their cores with whatever else
#: the machine does.
PRIOR_SIGMA: dict[str, float] = {"cpu": 0.05}
DEFAULT_PRIOR_SIGMA = 0.025
MIN_SIGMA = 0.005  #: a few runs may be alike by chance
PRIOR_DEGREES_OF_FREEDOM = 3.0  #: what the prior weighs where nothing else is known
ENOUGH_DEGREES_OF_FREEDOM = 8.0  #: with as many of our own the prior weighs nothing
MAX_DEGREES_OF_FREEDOM = 40.0  #: earlier runs never outvote many new ones


@dataclass(frozen=True)
class Noise:
    """The standard deviation of the logarithm of a run's median, and how well it is known."""

    sigma: float
    degrees_of_freedom: float  #: runs beyond the first of each group of A/A runs


@dataclass(frozen=True)
class NoiseModel:
    """The learned noise of many series."""

    by_series: Mapping[Hashable, Noise] = field(default_factory=dict)
    by_kind: Mapping[Hashable, float] = field(default_factory=dict)  #: the largest deviation of a series of each kind

    def noise_of(self, *runs: MeasuredRun, own_degrees_of_freedom: int = 0) -> Noise | None:
        """Return the noise of the noisiest of the runs' series; None where the runs' own degrees are enough, or where
        nothing tells how much such runs vary."""
        noises = [
            with_prior(self.by_series.get(run.series_key), self.prior_sigma(run), own_degrees_of_freedom)
            for run in runs
        ]
        return max(filter(None, noises), key=lambda noise: noise.sigma, default=None)

    def prior_sigma(self, run: MeasuredRun) -> float | None:
        """Return the noise of a run's metric where its series has no history; None if nothing tells it."""
        sigmas = (published_sigma(run.metric, run.target), self.by_kind.get(kind_of(run)))
        return max((sigma for sigma in sigmas if sigma is not None), default=None)


def kind_of(run: MeasuredRun) -> Hashable:
    """Return the key of the runs that may vary alike: one metric on one kind of device with one engine."""
    return (run.metric, run.target, run.axes["engine"])


def published_sigma(metric: str, target: str) -> float | None:
    """Return what is published of a metric's noise."""
    return PRIOR_SIGMA.get(target, DEFAULT_PRIOR_SIGMA) if METRICS[metric].has_published_noise else None


def learn_noise(runs: Iterable[MeasuredRun]) -> NoiseModel:
    """Learn from the A/A runs of each series: same program, runtime, driver and variables, and not imported."""
    series: dict[Hashable, dict[Hashable, list[float]]] = defaultdict(lambda: defaultdict(list))
    kinds: dict[Hashable, Hashable] = {}
    for run in runs:
        if run.median > 0 and not run.is_imported:
            series[run.series_key][run.program].append(math.log(run.median))
            kinds[run.series_key] = kind_of(run)
    pooled = {key: pooled_noise(groups.values()) for key, groups in series.items()}
    learned = {key: noise for key, noise in pooled.items() if noise}
    by_kind: dict[Hashable, float] = defaultdict(float)
    for key, noise in learned.items():
        by_kind[kinds[key]] = max(by_kind[kinds[key]], noise.sigma)
    return NoiseModel(learned, dict(by_kind))


def pooled_noise(groups: Iterable[Sequence[float]]) -> Noise | None:
    """Pool the variance within groups of logarithms; None where no group has two."""
    squares = degrees_of_freedom = 0.0
    for logs in groups:
        squares += sum_of_squares(logs)
        degrees_of_freedom += len(logs) - 1
    return Noise(math.sqrt(squares / degrees_of_freedom), degrees_of_freedom) if degrees_of_freedom else None


def with_prior(learned: Noise | None, prior_sigma: float | None, own_degrees_of_freedom: int = 0) -> Noise | None:
    """Pool learned noise with a prior; None where there is nothing to pool.

    `own_degrees_of_freedom` are those of the runs that are to be judged: they make the prior weigh less.
    """
    known = min(learned.degrees_of_freedom, MAX_DEGREES_OF_FREEDOM) if learned else 0.0
    missing = max(0.0, 1 - (known + own_degrees_of_freedom) / ENOUGH_DEGREES_OF_FREEDOM)
    prior = 0.0 if prior_sigma is None else PRIOR_DEGREES_OF_FREEDOM * missing
    if not known + prior:
        return None
    squares = (known * learned.sigma**2 if learned else 0.0) + prior * (prior_sigma or 0.0) ** 2
    return Noise(max(math.sqrt(squares / (known + prior)), MIN_SIGMA), known + prior)


def sum_of_squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)
