"""What a bisection looks for: how it is written, which stages it takes, and what their tasks say of it. Pure."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from db.reports import TaskRow
from jobs.errors import BadSetting
from jobs.metrics import METRICS
from jobs.stages import ENGINES, STAGES
from jobs.state import DONE, FailureKind, TaskState
from jobs.toolchains import DEFAULT, Row, toolchain_for
from jobs.variants import Engine
from orchestrator.deciding.intervals import of_pairs
from orchestrator.repeating.agreement import CONFIDENCE, FIGURES
from orchestrator.repeating.bisection import Verdict

OPTION = "--when"
FORMS = "'compile fails', 'numerics fail' (any stage), or 'ttft_ms worse by 5%' (any metric)"
FAILS = re.compile(r"(\w+) fails?")
WORSE = re.compile(r"(\w+) worse by (\d+(?:\.\d+)?) ?%")

#: What blames the stage itself. All else blames what it was given or where it ran, and says nothing.
BLAMING = frozenset(
    {FailureKind.TOOL_FAILED, FailureKind.WRONG_NUMBERS, FailureKind.OUT_OF_MEMORY, FailureKind.TIMED_OUT}
)

Key = tuple[int | None, int | None]  #: batch and prompt of a workload
Pairs = Mapping[Key, Sequence[tuple[float, float]]]  #: by workload, medians of (good, candidate), a pair for each round


@dataclass(frozen=True)
class Predicate:
    """A stage that fails, or a metric that is worse than the good toolchain's by more than so many percent."""

    text: str
    stage: str
    metric: str = ""
    percent: float = 0.0

    @property
    def is_steady(self) -> bool:
        """Whether one look at the metric is enough: it follows from what was computed."""
        return self.metric in FIGURES


def parse(text: str) -> Predicate:
    """From the command line; raises BadSetting."""
    words = " ".join(text.split())
    if found := FAILS.fullmatch(words):
        if found[1] not in STAGES:
            raise BadSetting(OPTION, f"no stage is called {found[1]!r}: there are {', '.join(STAGES)}")
        return Predicate(words, found[1])
    if found := WORSE.fullmatch(words):
        if found[1] not in METRICS:
            raise BadSetting(OPTION, f"no metric is called {found[1]!r}: there are {', '.join(METRICS)}")
        return Predicate(words, METRICS[found[1]].stage, found[1], float(found[2]))
    raise BadSetting(OPTION, f"{text!r} is none of {FORMS}")


def stages_for(predicate: Predicate, engine: Engine, able: Sequence[str]) -> list[str]:
    """Its stage and all that this needs, in their order; raises BadSetting where the engine or the job lacks it."""
    stages = ENGINES[engine]
    if predicate.stage not in stages:
        raise BadSetting(OPTION, f"the engine {engine} has no stage {predicate.stage}")
    if predicate.stage not in able:
        raise BadSetting(OPTION, f"the job has no stage {predicate.stage}: its stages are {', '.join(able)}")
    wanted = {predicate.stage}
    for name in reversed(STAGES):
        wanted |= set(stages[name].needs) if name in wanted else set()
    return [name for name in STAGES if name in wanted]


def expect_it_depends(
    predicate: Predicate, names: Sequence[str], stages: Sequence[str], engine: Engine, rows: Mapping[str, Row]
) -> None:
    """Raise BadSetting where nothing that the predicate looks at runs under one of the toolchains."""
    for name in names:
        if name != DEFAULT and all(toolchain_for(name, stage, engine, rows) == DEFAULT for stage in stages):
            raise BadSetting(
                OPTION, f"{', '.join(stages)} run under {DEFAULT} whatever the toolchain, not under {name}"
            )


def work_for(toolchain: str, stage: str, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """A plan's task of a stage that is this toolchain's work, after all that it needs.

    What a toolchain does not do itself it has done by the default: a compiler's program is timed under that.
    """
    asked = (_with_needs(task, tasks) for task in tasks if task.stage == stage)
    return next(found for found in asked if _whose(found) == toolchain)


def _with_needs(task: TaskRow, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    wanted = {task.id}
    for one in reversed(tasks):
        wanted |= set(one.needs) if one.id in wanted else set()
    return [one for one in tasks if one.id in wanted]


def _whose(tasks: Sequence[TaskRow]) -> str:
    return next((task.toolchain for task in tasks if task.toolchain != DEFAULT), DEFAULT)


@dataclass(frozen=True)
class Judgement:
    """A verdict, and what speaks for it."""

    verdict: Verdict
    why: str = ""


def judge_stage(predicate: Predicate, tasks: Sequence[TaskRow]) -> Judgement:
    """By the tasks of a probe that has ended: its last one is of the predicate's stage."""
    asked = next(task for task in tasks if task.stage == predicate.stage)
    if asked.state in DONE:
        return Judgement(Verdict.GOOD)
    culprit = asked if asked.state is TaskState.FAILED else next((one for one in tasks if one.failure), asked)
    why = culprit.failure.message if culprit.failure else asked.waits_for or asked.blocked_by or asked.state.value
    if culprit is asked and culprit.failure and culprit.failure.kind in BLAMING:
        return Judgement(Verdict.SKIP if predicate.metric else Verdict.BAD, _first_line(why))
    return Judgement(Verdict.SKIP, _first_line(why if culprit is asked else f"{culprit.stage}: {why}"))


def judge_metric(predicate: Predicate, pairs: Pairs, *, is_last: bool) -> Judgement | None:
    """By the rounds so far; None while more of them are needed. It holds if it holds for one workload."""
    found = {key: _decide(predicate, rounds) for key, rounds in pairs.items()}
    if not found:
        return Judgement(Verdict.SKIP, f"{predicate.metric} was not measured")
    told = "; ".join(": ".join(filter(None, (_in_words(key), why))) for key, (_, why) in found.items())
    verdicts = {verdict for verdict, _ in found.values()}
    if Verdict.BAD in verdicts:
        return Judgement(Verdict.BAD, told)
    if verdicts == {Verdict.GOOD}:
        return Judgement(Verdict.GOOD, told)
    return Judgement(Verdict.SKIP, f"not decided: {told}") if is_last else None


def _decide(predicate: Predicate, rounds: Sequence[tuple[float, float]]) -> tuple[Verdict | None, str]:
    """Of how many times the candidate is as bad as the good one, and that in words."""
    if not METRICS[predicate.metric].is_lower_better:
        rounds = [(candidate, good) for good, candidate in rounds]
    if len(set(rounds)) == 1 and rounds[0][0] == rounds[0][1]:
        return Verdict.GOOD, ""
    limit = 1 + predicate.percent / 100
    if min(min(pair) for pair in rounds) <= 0:  # it has no ratio
        is_bad = {candidate > limit * good for good, candidate in rounds}
        return (Verdict.BAD if is_bad == {True} else Verdict.GOOD if is_bad == {False} else None), ""
    logs = [math.log(candidate / good) for good, candidate in rounds]
    estimate = of_pairs(logs, None, 1 - CONFIDENCE)
    ratio = math.exp(fmean(logs))
    low, high = estimate.interval if estimate else (ratio, ratio)
    verdict = Verdict.BAD if low > limit else Verdict.GOOD if high <= limit else None
    told = f"{100 * abs(ratio - 1):.1f}% {'better' if ratio < 1 else 'worse'}"
    return verdict, f"{told} ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f})" if estimate else told


def _in_words(key: Key) -> str:
    return " ".join(f"{name} {value}" for name, value in zip(("batch", "prompt"), key, strict=True) if value)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
