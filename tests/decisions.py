"""Simulations of what is decided from noisy timings, over the noise that is published of MI325 machines in CI.

Each says of comparisons in which nothing changed how many were called different, of comparisons with a slowdown how
many found it, and how many runs of each side that took. The fixed rule is the peers' own: the mean of three runs
against a number that was written down once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean

from db.runs import Run
from jobs.spec import Gate
from orchestrator.deciding.comparing import DIFFERENT, Verdict, compare
from orchestrator.deciding.gates import Reference, Ruling, rule
from orchestrator.deciding.noise import Noises, learned
from orchestrator.deciding.racing import BUDGET_RUNS, Race
from tests.made_runs import run, runs

P95 = NormalDist().inv_cdf(0.95)
HISTORY = 40  #: runs that a gate looks back on
GATE = Gate()


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
        """Of the logarithm, but for what stands out."""
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
    """Of many trials: how many were called slower or faster, and how many runs of a side they took on average."""

    different: float
    slower: float
    runs: float


Trial = Callable[[Published, Random, float], tuple[Verdict, int]]


def rates(trial: Trial, published: Published, slower: float, trials: int) -> Rates:
    random = Random(f"{published.name} {slower}")
    found = [trial(published, random, slower) for _ in range(trials)]
    verdicts = [verdict for verdict, _ in found]
    return Rates(
        sum(verdict in DIFFERENT for verdict in verdicts) / trials,
        verdicts.count(Verdict.SLOWER) / trials,
        fmean(count for _, count in found),
    )


def stored(count: int) -> Trial:
    """`compare A B` of so many stored runs of each."""

    def trial(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
        old, new = runs(published.draws(random, count)), runs(published.draws(random, count, slower), digest="q" * 64)
        (cell,) = compare(old, new, Noises(), 2.0)
        return cell.verdict, count

    return trial


def raced(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """`compare --run` with its usual budget, on a machine that drifts by a tenth."""
    noises = learned(runs(published.draws(random, HISTORY)))
    turn = 0

    def measure(side: int) -> list[Run]:
        nonlocal turn
        turn += 1
        drift = 1 + 0.1 * math.sin(turn / 7)
        return [run(drift * published.draw(random, slower if side else 1.0))]

    race = Race(measure, noises, 2.0, BUDGET_RUNS // 2)
    while race.rounds < race.rounds_most:
        found = race.round()
        if found and found[0].verdict is not Verdict.INCONCLUSIVE:
            return found[0].verdict, race.rounds
    return Verdict.INCONCLUSIVE, race.rounds


def gated(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """A job's gate, which measures again until it is sure."""
    past = published.draws(random, HISTORY)
    noise = learned(runs(past)).of(run(1.0))
    assert noise is not None
    reference = Reference(fmean(map(math.log, past)), HISTORY, "")
    excess: list[float] = []
    while True:
        excess.append(math.log(published.draw(random, slower)) - reference.log)
        ruled = rule(excess, reference, noise, GATE.slowdown_percent, GATE.runs, 1)
        if ruled.ruling is not Ruling.UNSURE:
            return (Verdict.SLOWER if ruled.ruling is Ruling.FAILS else Verdict.EQUIVALENT), ruled.runs


def fixed(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """The peers' rule: the number was the mean of three runs when somebody wrote it down."""
    gold = fmean(published.draws(random, 3))
    is_slower = fmean(published.draws(random, 3, slower)) > published.tolerance * gold
    return (Verdict.SLOWER if is_slower else Verdict.EQUIVALENT), 3


def fixed_once(published: Published, random: Random, slower: float) -> tuple[Verdict, int]:
    """The same, by a number that is exactly right."""
    is_slower = fmean(published.draws(random, 3, slower)) > published.tolerance * published.mean
    return (Verdict.SLOWER if is_slower else Verdict.EQUIVALENT), 3
