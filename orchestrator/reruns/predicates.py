"""What a bisection looks for: its text, the stages that it needs, and how their tasks decide it. Pure."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from statistics import fmean

from db.reads.reports import TaskRow
from jobs.engines import ENGINES
from jobs.errors import BadSetting
from jobs.metrics import EXACT, METRICS, stage_of_metric
from jobs.number_format import format_number
from jobs.stages import STAGES
from jobs.state import DONE, FailureKind, TaskState
from jobs.toolchain_table import toolchain_for
from jobs.toolchains import DEFAULT, ToolchainSpec
from orchestrator.analysis.agreement import CONFIDENCE
from orchestrator.analysis.intervals import paired_estimate
from orchestrator.analysis.verdicts import DETERMINISTIC
from orchestrator.reruns.bisection import Mark

OPTION = "--when"
FORMS = (
    "'compile fails', 'numerics fail' (any stage), 'ttft_ms worse by 5%' (any metric), or 'kernels: spills > 0' "
    f"({', '.join(EXACT)})"
)
FAILS = re.compile(r"(\w+) fails?")
WORSE = re.compile(r"(\w+) worse by (\d+(?:\.\d+)?) ?%")
KERNELS = re.compile(r"kernels: (\w+) ?(>=|<=|>|<) ?(\d+(?:\.\d+)?(?:e\d+)?)")
COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}

#: Failures that blame the stage itself. All others blame its inputs or the machine, and decide nothing.
BLAMING = frozenset(
    {FailureKind.TOOL_FAILED, FailureKind.WRONG_NUMBERS, FailureKind.OUT_OF_MEMORY, FailureKind.TIMED_OUT}
)

Key = tuple[int | None, int | None, str | None]  #: batch and prompt tokens of a workload, or the task of a score
Pairs = Mapping[Key, Sequence[tuple[float, float]]]  #: by workload, the medians (good, candidate) of each round


@dataclass(frozen=True)
class Predicate:
    """A stage that fails, a metric that is worse than the good toolchain's, or a fact about a program's kernels."""

    text: str
    stage: str
    metric: str = ""  #: it is worse by more than `percent`
    percent: float = 0.0
    fact: str = ""  #: of any entry point, in `comparison` with `limit`
    comparison: str = ""
    limit: float = 0.0

    @property
    def is_deterministic(self) -> bool:
        """Whether one measurement of the metric is enough."""
        return self.metric in DETERMINISTIC


def parse(text: str) -> Predicate:
    """Parse the text of `--when`; raise BadSetting."""
    words = " ".join(text.split())
    if match := FAILS.fullmatch(words):
        stage = match[1]
        if stage not in STAGES:
            raise BadSetting(OPTION, f"no stage is called {stage!r}: choose one of {', '.join(STAGES)}")
        return Predicate(words, stage)
    if match := WORSE.fullmatch(words):
        metric = match[1]
        if metric not in METRICS:
            raise BadSetting(OPTION, f"no metric is called {metric!r}: choose one of {', '.join(METRICS)}")
        return Predicate(words, METRICS[metric].stage, metric, float(match[2]))
    if match := KERNELS.fullmatch(words):
        fact = match[1]
        if fact not in EXACT:
            raise BadSetting(OPTION, f"kernels have no {fact!r}: choose one of {', '.join(EXACT)}")
        return Predicate(words, stage_of_metric(fact), fact=fact, comparison=match[2], limit=float(match[3]))
    raise BadSetting(OPTION, f"{text!r} is none of {FORMS}")


def stages_for(predicate: Predicate, engine: str, job_stages: Sequence[str]) -> list[str]:
    """Return its stage after all that this needs; raise BadSetting where the engine or the job lacks the stage."""
    stages = ENGINES[engine].stages
    if predicate.stage not in stages:
        raise BadSetting(OPTION, f"the engine {engine} has no stage {predicate.stage}")
    if predicate.stage not in job_stages:
        raise BadSetting(OPTION, f"the job has no stage {predicate.stage}: its stages are {', '.join(job_stages)}")
    wanted = {predicate.stage}
    for name in reversed(STAGES):
        wanted |= set(stages[name].needs) if name in wanted else set()
    return [name for name in STAGES if name in wanted]


def expect_toolchain_matters(
    predicate: Predicate, names: Sequence[str], stages: Sequence[str], engine: str, rows: Mapping[str, ToolchainSpec]
) -> None:
    """Raise BadSetting where none of the stages runs under one of the toolchains."""
    for name in names:
        if name != DEFAULT and all(toolchain_for(name, stage, engine, rows) == DEFAULT for stage in stages):
            raise BadSetting(
                OPTION, f"{', '.join(stages)} run under {DEFAULT} whatever the toolchain, not under {name}"
            )


def work_for(toolchain: str, stage: str, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Return the task of a stage that tells about this toolchain, after all that it needs.

    Stages that a toolchain does not run itself run under the default: a compiler's program is timed under that.
    """
    chains = (_with_needs(task, tasks) for task in tasks if task.stage == stage)
    return next(chain for chain in chains if _toolchain_of(chain) == toolchain)


def _with_needs(task: TaskRow, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    wanted = {task.id}
    for earlier in reversed(tasks):
        wanted |= set(earlier.needs) if earlier.id in wanted else set()
    return [earlier for earlier in tasks if earlier.id in wanted]


def _toolchain_of(tasks: Sequence[TaskRow]) -> str:
    return next((task.toolchain for task in tasks if task.toolchain != DEFAULT), DEFAULT)


@dataclass(frozen=True)
class ProbeJudgement:
    """The mark of a candidate, and what speaks for it."""

    mark: Mark
    why: str = ""


def judge_stage(
    predicate: Predicate, tasks: Sequence[TaskRow], values: Iterable[tuple[str, float]] = ()
) -> ProbeJudgement:
    """Judge by the tasks of a probe that has ended; its last one is of the predicate's stage, with these medians."""
    judged = next(task for task in tasks if task.stage == predicate.stage)
    if judged.state in DONE:
        return ProbeJudgement(Mark.GOOD) if not predicate.fact else _judge_fact(predicate, values)
    culprit = judged if judged.state is TaskState.FAILED else next((task for task in tasks if task.failure), judged)
    why = culprit.failure.message if culprit.failure else judged.waits_for or judged.blocked_by or judged.state.value
    if culprit is judged and culprit.failure and culprit.failure.kind in BLAMING:
        is_judged = not (predicate.metric or predicate.fact)
        return ProbeJudgement(Mark.BAD if is_judged else Mark.SKIP, _first_line(why))
    return ProbeJudgement(Mark.SKIP, _first_line(why if culprit is judged else f"{culprit.stage}: {why}"))


def _judge_fact(predicate: Predicate, values: Iterable[tuple[str, float]]) -> ProbeJudgement:
    """Judge a fact by its values, one of which is enough."""
    known = [(name, value) for name, value in values if name in EXACT[predicate.fact]]
    if not known:
        return ProbeJudgement(Mark.SKIP, f"its target has no {predicate.fact}")
    compare = COMPARISONS[predicate.comparison]
    is_bad = any(compare(value, predicate.limit) for _, value in known)
    why = ", ".join(f"{name} {format_number(value)}" for name, value in known)
    return ProbeJudgement(Mark.BAD if is_bad else Mark.GOOD, why)


def judge_metric(predicate: Predicate, pairs: Pairs, *, is_last: bool) -> ProbeJudgement | None:
    """Judge by the rounds so far; None: measure another one. The predicate holds if it holds for one workload."""
    decisions = {key: _decide(predicate, rounds) for key, rounds in pairs.items()}
    if not decisions:
        return ProbeJudgement(Mark.SKIP, f"{predicate.metric} was not measured")
    why = "; ".join(": ".join(filter(None, (_workload_words(key), text))) for key, (_, text) in decisions.items())
    marks = {mark for mark, _ in decisions.values()}
    if Mark.BAD in marks:
        return ProbeJudgement(Mark.BAD, why)
    if marks == {Mark.GOOD}:
        return ProbeJudgement(Mark.GOOD, why)
    return ProbeJudgement(Mark.SKIP, f"not decided: {why}") if is_last else None


def _decide(predicate: Predicate, rounds: Sequence[tuple[float, float]]) -> tuple[Mark | None, str]:
    """Mark by the ratio of candidate to good, in the direction of worse, and say it; None: another round."""
    if not METRICS[predicate.metric].is_lower_better:
        rounds = [(candidate, good) for good, candidate in rounds]
    if len(set(rounds)) == 1 and rounds[0][0] == rounds[0][1]:
        return Mark.GOOD, ""
    limit = 1 + predicate.percent / 100
    if min(min(pair) for pair in rounds) <= 0:  # it has no ratio
        is_bad = {candidate > limit * good for good, candidate in rounds}
        return (Mark.BAD if is_bad == {True} else Mark.GOOD if is_bad == {False} else None), ""
    log_ratios = [math.log(candidate / good) for good, candidate in rounds]
    estimate = paired_estimate(log_ratios, None, 1 - CONFIDENCE)
    ratio = math.exp(fmean(log_ratios))
    low, high = estimate.interval if estimate else (ratio, ratio)
    mark = Mark.BAD if low > limit else Mark.GOOD if high <= limit else None
    text = f"{100 * abs(ratio - 1):.1f}% {'better' if ratio < 1 else 'worse'}"
    return mark, f"{text} ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f})" if estimate else text


def _workload_words(key: Key) -> str:
    return " ".join(f"{name} {value}" for name, value in zip(("batch", "prompt", "of"), key, strict=True) if value)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
