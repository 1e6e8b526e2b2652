"""`compare --run`: two programs measured in turns on one device, each run a fresh process, until it is decided.

One program against itself (A/A) tells how the device scatters: its runs are of one program, and what gates and later
comparisons learn of noise, they learn from such.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from db import replanning, reports
from db.replanning import Replanned
from db.reports import AttemptRow
from db.runs import Chosen, Run, runs
from jobs.errors import BadSetting, Conflict, NothingToDo
from jobs.state import TaskState
from jobs.task import Pin
from orchestrator import output
from orchestrator.context import Context
from orchestrator.deciding import comparing, sides
from orchestrator.deciding.comparing import Compared, Key, Verdict
from orchestrator.deciding.intervals import ALPHA
from orchestrator.deciding.noise import Noises, learned
from orchestrator.repeating import verification
from orchestrator.repeating.agreement import FIGURES
from orchestrator.submitting import waiting

#: After how many rounds (a run of each) the interval is looked at: each look may err, so that there are few.
LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BUDGET_RUNS = 64  #: of both sides together: finds 5% where runs scatter by 2.5%
BUDGET = re.compile(r"(\d+)(s|m|h)?")
SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """When a race ends that nothing decides."""

    runs: int | None = None  #: of both sides together
    wall_s: float | None = None

    @property
    def rounds(self) -> int:
        """A round is a run of each side."""
        return LOOKS[-1] if self.runs is None else min(self.runs // 2, LOOKS[-1])


def budget_of(text: str) -> Budget:
    """From the command line; raises BadSetting."""
    found = BUDGET.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise BadSetting("--budget", f"{text!r} is neither a number of runs such as 40 nor a time such as 20m or 2h")
    if found[2]:
        return Budget(wall_s=float(int(found[1]) * SECONDS[found[2]]))
    if int(found[1]) < 2 * LOOKS[0]:
        raise BadSetting("--budget", f"{found[1]} runs decide nothing: give {2 * LOOKS[0]} or more")
    return Budget(runs=int(found[1]))


@dataclass
class Race:
    """Rounds so far: pure but for `measure`, which runs one side once and says what it came to."""

    measure: Callable[[int], Sequence[Run]]  #: of the side: 0 or 1
    noises: Noises
    margin_percent: float
    rounds_most: int
    rounds: int = 0
    pairs: dict[Key, list[tuple[Run, Run]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def looks(self) -> list[int]:
        """The rounds after which it is decided, the last one among them; one, where nothing follows from timing."""
        if self.pairs and all(turns[0][0].metric in FIGURES for turns in self.pairs.values()):
            return [1]
        return sorted({look for look in LOOKS if look < self.rounds_most} | {self.rounds_most})

    def round(self) -> list[Compared] | None:
        """A run of each, the other one first every second time; what is known then, where it is looked at."""
        self.rounds += 1
        order = (0, 1) if self.rounds % 2 else (1, 0)
        found = {side: {(run.metric, run.workload): run for run in self.measure(side)} for side in order}
        for key in found[0]:
            if key in found[1]:
                self.pairs[key].append((found[0][key], found[1][key]))
        return self.verdicts() if self.rounds in self.looks else None

    def verdicts(self) -> list[Compared]:
        """By the pairs so far: all looks together err no more often than one comparison may."""
        return comparing.compare_turns(self.pairs, self.noises, self.margin_percent, ALPHA / len(self.looks))

    def noise_in_words(self) -> list[str]:
        """How the runs of one program that raced against itself scatter."""
        told = []
        for turns in self.pairs.values():
            first, found = turns[0][0], learned(run for pair in turns for run in pair).found
            if noise := found.get(first.bench):
                where = f" ({sides.told(first.workload)})" if first.workload else ""
                told.append(f"{first.metric}{where} scatters by {noise.sigma:.1%} in {2 * len(turns)} runs of the same")
        return told


def race(
    context: Context, texts: tuple[str, str], chosen: Sequence[Chosen], margin_percent: float, budget: Budget
) -> list[Compared]:
    """Rounds until every metric is decided or the budget is used up; the last verdicts."""
    both = [sides.read(context.database, text, one) for text, one in zip(texts, chosen, strict=True)]
    with waiting.follower(context, cancels_when_interrupted=True) as wait:
        return run_race(context, both, chosen, margin_percent, budget, wait)


def run_race(
    context: Context,
    both: Sequence[sides.Side],
    chosen: Sequence[Chosen],
    margin_percent: float,
    budget: Budget,
    wait: waiting.Wait,
) -> list[Compared]:
    """The same with sides that were read, and with what follows a job to its end."""
    newest = _newest(both)
    plans = _plans(context, newest)
    names = [f"compare {run.variant} ({side.text})" for run, side in zip(newest, both, strict=True)]
    deadline = None if budget.wall_s is None else time.monotonic() + budget.wall_s

    def measure(side: int) -> list[Run]:
        return _measure(context, plans[side], names[side], chosen[side], wait)

    noises = learned(sides.history(context.database, both, disturbed=chosen[0].disturbed))
    race = Race(measure, noises, margin_percent, budget.rounds)
    other = "itself" if newest[0].attempt == newest[1].attempt else names[0]
    output.note(f"{names[1]} against {other}, in turns on {newest[1].place}")
    while True:
        output.note(f"round {race.rounds + 1} of {race.rounds_most} at most")
        found = race.round()
        is_over = race.rounds >= race.rounds_most or (deadline is not None and time.monotonic() > deadline)
        found = race.verdicts() if found is None and is_over else found
        if found is None:
            continue
        output.note(f"after {race.rounds} rounds: {'; '.join(map(_in_words, found)) or 'nothing was measured'}")
        if is_over or (found and all(cell.verdict is not Verdict.INCONCLUSIVE for cell in found)):
            break
    for text in race.noise_in_words() if other == "itself" else ():
        output.note(text)
    return found


def _newest(both: Sequence[sides.Side]) -> list[Run]:
    """A run of each that can be done again, of variants that can be compared; raises BadSetting, NothingToDo."""
    own = [[run for run in side.runs if not run.is_imported] for side in both]
    for side, runs_left in zip(both, own, strict=True):
        if not runs_left:
            raise NothingToDo(f"all results of {side.text} were imported: there is nothing to run")
    pairs = comparing.shared(own)
    if not pairs:
        raise NothingToDo(f"{both[0].text} and {both[1].text} have no metric and workload in common")
    names = sorted({(old.variant, new.variant) for old, new in pairs})
    if len(names) > 1:
        told = ", ".join(" / ".join(dict.fromkeys(pair)) for pair in names[:3])
        raise BadSetting("--run", f"measures one variant a side, and there are {told}: name one with --variant")
    old, new = max(pairs, key=lambda pair: pair[1].at)
    return [old, new]


def _plans(context: Context, newest: Sequence[Run]) -> list[Replanned]:
    """Both to run on the same devices; raises Conflict where a toolchain is not what it was."""
    attempts = [reports.attempt(context.database, run.attempt) for run in newest]
    for attempt in attempts:
        if problem := verification.toolchain_problem(context, attempt):
            raise Conflict(problem)
    return [
        replanning.replan(context.database, attempt.task, pin)
        for attempt, pin in zip(attempts, pins_of(attempts), strict=True)
    ]


def pins_of(attempts: Sequence[AttemptRow]) -> list[Pin | None]:
    """Both where the new one last ran; where the old one took more devices, on those, and the new one on the first.

    Gangs run where there is room for them.
    """
    old, new = attempts
    pin = verification.pin_of(old if len(old.devices) > len(new.devices) else new)
    if pin is None or any(len(attempt.places) > 1 for attempt in attempts):
        return [None, None]
    return [replace(pin, devices=pin.devices[: len(attempt.devices)]) for attempt in attempts]


def _measure(context: Context, again: Replanned, name: str, chosen: Chosen, wait: waiting.Wait) -> list[Run]:
    job = verification.submit_again(context, again, name)
    state = wait(job)
    task = reports.tasks(context.database, job)[-1]
    if task.state is not TaskState.SUCCEEDED:
        raise verification.unfinished(job, state, task)
    return runs(context.database, Chosen(chosen.metrics, tasks=(task.id,), disturbed=chosen.disturbed))


def _in_words(cell: Compared) -> str:
    low, high = cell.interval or (cell.ratio, cell.ratio)
    told = f"{cell.metric} {cell.ratio:.3f} ({low:.3f} to {high:.3f})" if cell.ratio and low and high else cell.metric
    return f"{told} {cell.verdict}"
