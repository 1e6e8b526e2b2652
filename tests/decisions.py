"""Simulations of decisions on noisy timings, with the noise published for MI325 machines in CI.

Each reports how many comparisons of equal sides were called different, how many comparisons with a slowdown found it,
and how many runs of each side that took. The fixed rule is that of the peers: the mean of three runs against a number
that was written down once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean

from db.reads.runs import MeasuredRun
from jobs.sections import GateSection
from orchestrator.analysis.comparisons import compare
from orchestrator.analysis.noise import NoiseModel, learn_noise
from orchestrator.analysis.sequential_test import Baseline, sequential_test
from orchestrator.analysis.verdicts import DIFFERENT, Verdict
from orchestrator.reruns.interleaved import BUDGET_RUNS, InterleavedComparison
from tests.made_runs import run, runs

P95 = NormalDist().inv_cdf(0.95)
HISTORY = 40  #: runs that a gate looks back on
GATE = GateSection()


@dataclass(frozen=True)
class Published:
    """Timings of one benchmark in CI: of `runs`, the mean, the 95th percentile and the largest, in ms."""

    name: str
    runs: int
    mean: float
    p95: float
    largest: float
    tolerance: float  #: of the fixed rule

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the logarithm, from mean and 95th percentile; outliers are drawn apart."""
        return math.log(self.p95 / self.mean) / P95

    def draw(self, random: Random, slower: float = 1.0) -> float:
        """A run; two of all that are published lie between the 95th percentile and the largest."""
        if random.random() < 2 / self.runs:
            return slower * random.uniform(self.p95, self.largest)
        return slower * self.mean * math.exp(random.gauss(0, self.sigma))

    def draws(self, random: Random, count: int, slower: float = 1.0) -> list[float]:
        return [self.draw(random, slower) for _ in range(count)]


PUBLISHED = (
    Published("8B fp8 prefill 2048", 518, 174.56, 180.4, 216.8, 1.03),
    Published("8B fp16 decode 2048", 278, 7.157, 7.465, 8.022, 1.06),
    Published("decode 128", 532, 5.836, 6.073, 7.723, 1.06),
)


@dataclass(frozen=True)
class Rates:
    """Results of many trials: how many were called slower or faster, and the mean number of runs of a side."""

    different: float
    slower: float
    runs: float


Trial = Callable[[Published, Random, float], tuple[Verdict, int]]


def rates(trial: Trial, published: Published, slower: float, trials: int) -> Rates:
    random = Random(f"{published.name} {slower}")
    outcomes = [trial(published, random, slower) for _ in range(trials)]
    verdicts = [verdict for verdict, _ in outcomes]
    return Rates(
        sum(verdict in DIFFERENT for verdict in verdicts) / trials,
        verdicts.count(Verdict.SLOWER) / trials,
        fmean(count for _, count in outcomes),
    )


def stored(count: int) -> Trial:
    """Simulate `compare A B` over this many stored runs of each."""

    def trial(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
        old, new = runs(published.draws(random, count)), runs(published.draws(random, count, slower), digest="q" * 64)
        (cell,) = compare(old, new, NoiseModel(), 2.0)
        return cell.verdict, count

    return trial


def interleaved(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """`compare --run` with its usual budget, on a machine that drifts by a tenth."""
    noises = learn_noise(runs(published.draws(random, HISTORY)))
    turn = 0

    def measure(side: int) -> list[MeasuredRun]:
        nonlocal turn
        turn += 1
        drift = 1 + 0.1 * math.sin(turn / 7)
        return [run(drift * published.draw(random, slower if side else 1.0))]

    comparison = InterleavedComparison(measure, noises, 2.0, BUDGET_RUNS // 2)
    while comparison.rounds < comparison.max_rounds:
        cells = comparison.run_round()
        if cells and cells[0].verdict is not Verdict.INCONCLUSIVE:
            return cells[0].verdict, comparison.rounds
    return Verdict.INCONCLUSIVE, comparison.rounds


def gated(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """A job's gate, which measures again until it is sure."""
    past = published.draws(random, HISTORY)
    noise = learn_noise(runs(past)).noise_of(run(1.0))
    assert noise is not None
    baseline = Baseline(fmean(map(math.log, past)), HISTORY, "")
    excess: list[float] = []
    while True:
        excess.append(math.log(published.draw(random, slower)) - baseline.log_mean)
        result = sequential_test(excess, baseline, noise, GATE.slowdown_percent, GATE.runs, 1)
        if not result.needs_more_runs:
            return result.verdict, result.runs


def fixed(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """Simulate the peers' rule: the stored number was the mean of three runs when it was written down."""
    gold = fmean(published.draws(random, 3))
    is_slower = fmean(published.draws(random, 3, slower)) > published.tolerance * gold
    return (Verdict.SLOWER if is_slower else Verdict.EQUIVALENT), 3


def fixed_once(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """Simulate the peers' rule with a stored number that is exactly right."""
    is_slower = fmean(published.draws(random, 3, slower)) > published.tolerance * published.mean
    return (Verdict.SLOWER if is_slower else Verdict.EQUIVALENT), 3
