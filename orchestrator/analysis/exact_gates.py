"""What a gate decides on facts that follow from a program alone: none may be worse than the baseline's. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from db.reads.gated_attempts import GatedAttempt
from db.reads.runs import MeasuredRun, workload_of
from jobs.metrics import EXACT, METRICS, stage_of_metric
from jobs.sections import GateSection
from jobs.state import Failure, FailureKind
from jobs.targets import TARGETS
from jobs.task import Measurement, TaskResult
from orchestrator.analysis.verdicts import DETERMINISTIC, Tolerance
from orchestrator.formatting import format_quantity
from orchestrator.workloads import Workload, workload_words

#: Sums of the same numbers in another order.
ROUNDING = Tolerance(relative=1e-9)


@dataclass(frozen=True)
class ExactDecision:
    """One metric in one workload, beside the newest run that is the baseline."""

    metric: str
    workload: Workload
    value: float
    baseline: MeasuredRun | None  #: None: there is nothing to compare with

    def is_worse(self, target: str) -> bool:
        """Whether the value is worse than the baseline's; floors on CPUs follow from what their nodes measured."""
        if self.baseline is None:
            return False
        tolerance = DETERMINISTIC[self.metric] if TARGETS[target].torch_device == "cpu" else ROUNDING
        if tolerance.allows(self.baseline.median, self.value):
            return False
        return (self.value > self.baseline.median) == METRICS[self.metric].is_lower_better


def judge(result: TaskResult, task: GatedAttempt, gate: GateSection, history: Sequence[MeasuredRun]) -> TaskResult:
    """Return the result as it is to be stored: failed where a fact is worse, with a warning where none can be judged.

    `history` has the good runs of the baseline's variant.
    """
    others = [run for run in history if run.task != task.task and run.target == task.target]
    decisions = [_decide(each, others) for each in result.measurements if each.metric in gate.exact]
    if worse := [decision for decision in decisions if decision.is_worse(task.target)]:
        message = "; ".join(_sentence(decision, gate.toolchain or "the last good") for decision in worse)
        return replace(result, failure=Failure(FailureKind.KERNELS_WORSE, message + _hint(worse[0], task)))
    return replace(result, warnings=(*result.warnings, *_warnings(decisions, result, gate)))


def _warnings(decisions: Sequence[ExactDecision], result: TaskResult, gate: GateSection) -> Iterator[str]:
    """Yield what passes because nothing can be said of it."""
    if unjudged := dict.fromkeys(decision.metric for decision in decisions if decision.baseline is None):
        yield f"gate: {', '.join(unjudged)} passes: there is nothing to compare it with yet"
    measured = {measurement.metric for measurement in result.measurements}
    stages = {METRICS[metric].stage for metric in measured}
    missing = [
        name
        for name in gate.metrics
        if name in EXACT and stage_of_metric(name) in stages and not measured & {*EXACT[name]}
    ]
    if missing:
        yield f"gate: {', '.join(missing)} passes: the target or the program has none"


def _decide(measurement: Measurement, history: Sequence[MeasuredRun]) -> ExactDecision:
    context = measurement.context
    workload = workload_of(context.get("batch"), context.get("prompt_tokens"), context)
    same = [run for run in history if (run.metric, run.workload) == (measurement.metric, workload)]
    newest = max(same, key=lambda run: run.at, default=None)
    return ExactDecision(measurement.metric, workload, median(measurement.samples), newest)


def _sentence(decision: ExactDecision, baseline: str) -> str:
    """`decode_spills (batch 4, prompt 2048) 12 registers, where the last good has 0 registers`."""
    assert decision.baseline is not None
    unit, workload = METRICS[decision.metric].unit, workload_words(decision.workload)
    value, before = (format_quantity(number, unit) for number in (decision.value, decision.baseline.median))
    where = f" ({workload})" if workload else ""
    return f"{decision.metric}{where} {value}, where {baseline} has {before}"


def _hint(decision: ExactDecision, task: GatedAttempt) -> str:
    """Return the command that names the kernels, where the stage has a report on them."""
    if decision.baseline is None or METRICS[decision.metric].stage != "analyse":
        return ""
    return f"; `haloctl kernels {decision.baseline.task} {task.task}` shows the kernels"
