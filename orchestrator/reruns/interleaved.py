"""`compare --run`: two programs measured interleaved on one device (ABBA), each run a fresh process, until decided.

One program against itself (A/A) tells how much the device's runs vary: gates and later comparisons learn their noise
from such runs.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from db.reads import replanning, reports
from db.reads.replanning import Replanned
from db.reads.reports import AttemptRow
from db.reads.run_filter import RunFilter
from db.reads.runs import MeasuredRun, runs
from jobs.errors import BadSetting, Conflict, NothingToDo
from jobs.state import TaskState
from jobs.task import Pin
from orchestrator import output
from orchestrator.analysis import comparisons
from orchestrator.analysis.comparisons import Comparison, Key, RunPair
from orchestrator.analysis.intervals import ALPHA
from orchestrator.analysis.noise import NoiseModel, learn_noise
from orchestrator.analysis.sides import Side, recent_runs
from orchestrator.analysis.verdicts import DETERMINISTIC, Verdict
from orchestrator.context import Context
from orchestrator.follow import waiting
from orchestrator.reruns import verification
from orchestrator.workloads import workload_words

#: The rounds (a run of each side) after which the interval is computed: each such look may err, so there are few.
LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BUDGET_RUNS = 64  #: of both sides together: finds 5% where the noise is 2.5%
BUDGET = re.compile(r"(\d+)(s|m|h)?")
SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class RunBudget:
    """When an interleaved comparison ends undecided."""

    runs: int | None = None  #: of both sides together
    wall_s: float | None = None

    @property
    def max_rounds(self) -> int:
        """A round is a run of each side."""
        return LOOKS[-1] if self.runs is None else min(self.runs // 2, LOOKS[-1])


def parse_budget(text: str) -> RunBudget:
    """Parse `40` (runs) or `20m`; raise BadSetting."""
    match = BUDGET.fullmatch(text.strip())
    if not match or not int(match[1]):
        raise BadSetting("--budget", f"{text!r} is neither a number of runs such as 40 nor a time such as 20m or 2h")
    if match[2]:
        return RunBudget(wall_s=float(int(match[1]) * SECONDS[match[2]]))
    if int(match[1]) < 2 * LOOKS[0]:
        raise BadSetting("--budget", f"{match[1]} runs decide nothing: give {2 * LOOKS[0]} or more")
    return RunBudget(runs=int(match[1]))


@dataclass
class InterleavedComparison:
    """The rounds so far. Pure except for `measure`, which runs one side once and returns its runs."""

    measure: Callable[[int], Sequence[MeasuredRun]]  #: of the side: 0 or 1
    noise: NoiseModel
    margin_percent: float
    max_rounds: int
    rounds: int = 0
    pairs: dict[Key, list[RunPair]] = field(default_factory=lambda: defaultdict(list))

    @property
    def looks(self) -> list[int]:
        """The rounds after which there are verdicts, the last one among them; one where all is deterministic."""
        if self.pairs and all(rounds[0][0].metric in DETERMINISTIC for rounds in self.pairs.values()):
            return [1]
        return sorted({look for look in LOOKS if look < self.max_rounds} | {self.max_rounds})

    def run_round(self) -> list[Comparison] | None:
        """Measure each side once, B first every second time; return the verdicts if this is a look."""
        self.rounds += 1
        order = (0, 1) if self.rounds % 2 else (1, 0)
        measured = {side: {(run.metric, run.workload): run for run in self.measure(side)} for side in order}
        for key, old in measured[0].items():
            if new := measured[1].get(key):
                self.pairs[key].append((old, new))
        return self.verdicts() if self.rounds in self.looks else None

    def verdicts(self) -> list[Comparison]:
        """Compare the pairs so far; the looks share ALPHA (Bonferroni), so together they err no more often than one."""
        return comparisons.compare_pairs(self.pairs, self.noise, self.margin_percent, ALPHA / len(self.looks))

    def noise_texts(self) -> list[str]:
        """Say how much the runs of one program varied that was compared with itself."""
        texts = []
        for rounds in self.pairs.values():
            first = rounds[0][0]
            if noise := learn_noise(run for pair in rounds for run in pair).by_series.get(first.series_key):
                workload = f" ({workload_words(first.workload)})" if first.workload else ""
                texts.append(f"{first.metric}{workload}: noise {noise.sigma:.1%} in {2 * len(rounds)} runs of the same")
        return texts


def run_interleaved(
    context: Context, both: tuple[Side, Side], filters: Sequence[RunFilter], margin_percent: float, budget: RunBudget
) -> list[Comparison]:
    """Run rounds until every metric is decided or the budget is used up; return the last verdicts."""
    with waiting.follower(context, cancels_when_interrupted=True) as wait:
        return run_rounds(context, both, filters, margin_percent, budget, wait)


def run_rounds(
    context: Context,
    both: tuple[Side, Side],
    filters: Sequence[RunFilter],
    margin_percent: float,
    budget: RunBudget,
    wait: waiting.FollowJob,
) -> list[Comparison]:
    """Run rounds as `run_interleaved` does; `wait` follows a job to its end."""
    newest = _newest(both)
    plans = _plans(context, newest)
    names = [f"compare {run.variant} ({side.text})" for run, side in zip(newest, both, strict=True)]
    deadline = None if budget.wall_s is None else time.monotonic() + budget.wall_s

    def measure(side: int) -> list[MeasuredRun]:
        return _measure(context, plans[side], names[side], filters[side], wait)

    noise = learn_noise(recent_runs(context.database, both, disturbed=filters[0].disturbed))
    comparison = InterleavedComparison(measure, noise, margin_percent, budget.max_rounds)
    is_itself = newest[0].attempt == newest[1].attempt
    output.print_message(f"{names[1]} against {'itself' if is_itself else names[0]}, interleaved on {newest[1].place}")
    while True:
        output.print_message(f"round {comparison.rounds + 1} of at most {comparison.max_rounds}")
        verdicts = comparison.run_round()
        is_over = comparison.rounds >= comparison.max_rounds or (deadline is not None and time.monotonic() > deadline)
        if verdicts is None and is_over:
            verdicts = comparison.verdicts()
        if verdicts is None:
            continue
        output.print_message(
            f"after {comparison.rounds} rounds: {'; '.join(map(_summary, verdicts)) or 'nothing was measured'}"
        )
        if is_over or (verdicts and all(metric.verdict is not Verdict.INCONCLUSIVE for metric in verdicts)):
            break
    for text in comparison.noise_texts() if is_itself else ():
        output.print_message(text)
    return verdicts


def _newest(both: tuple[Side, Side]) -> RunPair:
    """Return a repeatable run of each side, of variants that can be compared; raise BadSetting or NothingToDo."""
    old_runs, new_runs = ([run for run in side.runs if not run.is_imported] for side in both)
    for side, repeatable in zip(both, (old_runs, new_runs), strict=True):
        if not repeatable:
            raise NothingToDo(f"all results of {side.text} were imported: there is nothing to run")
    pairs = comparisons.newest_pairs(old_runs, new_runs)
    if not pairs:
        raise NothingToDo(f"{both[0].text} and {both[1].text} have no metric and workload in common")
    variants = sorted({(old.variant, new.variant) for old, new in pairs})
    if len(variants) > 1:
        named = ", ".join(" / ".join(dict.fromkeys(pair)) for pair in variants[:3])
        raise BadSetting("--run", f"measures one variant a side, and there are {named}: name one with --variant")
    return max(pairs, key=lambda pair: pair[1].at)


def _plans(context: Context, newest: Sequence[MeasuredRun]) -> list[Replanned]:
    """Plan both to run on the same devices; raise Conflict where a toolchain has changed since."""
    attempts = [reports.attempt(context.database, run.attempt) for run in newest]
    for attempt in attempts:
        if problem := verification.toolchain_problem(context, attempt):
            raise Conflict(problem)
    return [
        replanning.replan(context.database, attempt.task, pin)
        for attempt, pin in zip(attempts, pins_of(attempts), strict=True)
    ]


def pins_of(attempts: Sequence[AttemptRow]) -> list[Pin | None]:
    """Pin both to where the new one last ran; where the old one took more devices, to those, the new one to the first.

    Gangs are not pinned: they run wherever enough nodes are free.
    """
    old, new = attempts
    pin = verification.pin_of(old if len(old.devices) > len(new.devices) else new)
    if pin is None or any(len(attempt.places) > 1 for attempt in attempts):
        return [None, None]
    return [replace(pin, devices=pin.devices[: len(attempt.devices)]) for attempt in attempts]


def _measure(
    context: Context, replanned: Replanned, name: str, run_filter: RunFilter, wait: waiting.FollowJob
) -> list[MeasuredRun]:
    job = verification.submit_replanned(context, replanned, name)
    state = wait(job)
    task = reports.tasks(context.database, job)[-1]
    if task.state is not TaskState.SUCCEEDED:
        raise verification.unfinished(job, state, task)
    return runs(context.database, RunFilter(run_filter.metrics, tasks=(task.id,), disturbed=run_filter.disturbed))


def _summary(comparison: Comparison) -> str:
    ratio, (low, high) = comparison.ratio, comparison.interval or (comparison.ratio, comparison.ratio)
    figures = f" {ratio:.3f} ({low:.3f} to {high:.3f})" if ratio and low and high else ""
    return f"{comparison.metric}{figures} {comparison.verdict}"
