"""What a job's gate decides on results: they pass, fail as too slow, or are measured again. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

from db.reads.gated_attempts import GatedAttempt
from db.reads.runs import DISTURBED, MeasuredRun, differing_variables, driver_of, variables_of, workload_of
from db.writes.targets import QuotedTarget, target_for
from jobs.metrics import METRICS
from jobs.sections import GateSection
from jobs.state import RETRYABLE, Failure, FailureKind, TaskState
from jobs.task import TaskResult
from orchestrator.analysis.change_points import find_change_points
from orchestrator.analysis.noise import learn_noise
from orchestrator.analysis.sequential_test import Baseline, SequentialResult, sequential_test
from orchestrator.analysis.verdicts import SPEED_UNITS, Verdict
from orchestrator.formatting import format_count, format_quantity
from orchestrator.workloads import workload_words

MAX_LEVEL_RUNS = 50  #: the newest runs of the last level, which the baseline is the mean of
TARGET = "target"  #: a gate against quoted numbers
MAX_DEVICES_NAMED = 2


NOT_JUDGED = SequentialResult(Verdict.UNJUDGED, 0)


@dataclass(frozen=True)
class GateDecision:
    """What a gate says of one metric in one workload."""

    run: MeasuredRun
    baseline: Baseline | None  #: None: there is nothing to compare with
    result: SequentialResult
    sigma: float = 0.0
    elsewhere: tuple[str, ...] = ()  #: devices that have a baseline, where this one has none
    missing_because: str = ""  #: why there is no baseline


def gated_runs(result: TaskResult, task: GatedAttempt, gate: GateSection) -> tuple[list[MeasuredRun], str]:
    """Return a result's undisturbed runs of the gated metrics, and what disturbed the others."""
    gated = [measurement for measurement in result.measurements if measurement.metric in gate.timings]
    disturbed_by, runs = "", []
    for measurement in gated:
        disturbed_by = str(measurement.context.get(DISTURBED) or disturbed_by)
        value = median(measurement.samples) if measurement.samples else 0.0
        if not measurement.context.get(DISTURBED) and value > 0:
            runs.append(_run(measurement.metric, value, measurement.context, task))
    return runs, disturbed_by


def unmeasured(result: TaskResult, gate: GateSection) -> list[str]:
    """Return the gated metrics of the result's stage that it did not measure, such as energy that no device tells."""
    measured = {measurement.metric for measurement in result.measurements}
    stages = {METRICS[metric].stage for metric in measured}
    return [metric for metric in gate.timings if METRICS[metric].stage in stages and metric not in measured]


def _run(metric: str, value: float, facts: Any, task: GatedAttempt) -> MeasuredRun:
    return MeasuredRun(
        attempt=task.attempt,
        task=task.task,
        job="",
        model=task.model,
        variant=task.variant,
        target=task.target,
        axes=task.axes,
        metric=metric,
        unit=METRICS[metric].unit,
        workload=workload_of(facts.get("batch"), facts.get("prompt_tokens"), facts),
        median=value,
        place=task.place,
        node=task.node,
        devices=(),
        digest=task.digest,
        driver=driver_of(facts),
        variables=variables_of(facts),
        at=datetime.now(UTC),
        is_good=False,
    )


def decide(
    task: GatedAttempt,
    gate: GateSection,
    runs: Sequence[MeasuredRun],
    history: Sequence[MeasuredRun],
    quoted: Sequence[QuotedTarget],
    *,
    is_last: bool,
) -> list[GateDecision]:
    """Decide each metric and workload by all its runs since the task was submitted, each against its device's history.

    `history` holds good runs of other tasks: what is judged has no say in its noise. With `is_last` nothing may be
    measured again.
    """
    noise_model = learn_noise(history)
    cells: dict[tuple[Any, ...], list[MeasuredRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.at):
        cells[run.metric, run.workload].append(run)
    decisions = []
    for cell in cells.values():
        baselines = {run.place: _baseline(run, history, quoted, gate) for run in cell}
        known = [(run, baseline) for run in cell if (baseline := baselines[run.place])]
        noise = noise_model.noise_of(*cell)
        if not known:
            decisions.append(_without_baseline(cell[-1], task, gate, history, set(baselines)))
            continue
        run, baseline = known[-1]
        if noise is None:
            decisions.append(GateDecision(run, baseline, NOT_JUDGED))
            continue
        excess = [_log_slowdown(run, baseline) for run, baseline in known]
        max_runs = len(known) if is_last else gate.runs  # some may have been disturbed, or elsewhere
        result = sequential_test(excess, baseline, noise, gate.slowdown_percent, max_runs, len(cells))
        decisions.append(GateDecision(run, baseline, result, noise.sigma))
    return decisions


def _without_baseline(
    run: MeasuredRun, task: GatedAttempt, gate: GateSection, history: Iterable[MeasuredRun], places: set[str]
) -> GateDecision:
    same = (
        [] if gate.against == TARGET else [other for other in history if other.series_key[1:4] == run.series_key[1:4]]
    )
    elsewhere = tuple(sorted({other.place for other in same} - places - {run.place}))
    reason = _failed_baseline(task, gate) or _other_conditions(run, same)
    return GateDecision(run, None, NOT_JUDGED, elsewhere=elsewhere, missing_because=reason)


def _other_conditions(run: MeasuredRun, same: Sequence[MeasuredRun]) -> str:
    """Say under which other variables the newest earlier run of this device was measured, if there is one."""
    there = [other for other in same if other.place == run.place]
    newest = max(there, key=lambda other: other.at, default=run)
    differing = differing_variables(newest.variables, run.variables)
    return f": earlier runs had other environment variables ({', '.join(differing)})" if differing else ""


def _failed_baseline(task: GatedAttempt, gate: GateSection) -> str:
    """Say what became of the task of the same job that was to measure the baseline, if it did not."""
    if task.after is None or task.after_state is None or TaskState(task.after_state) not in RETRYABLE:
        return ""
    state = TaskState(task.after_state)
    outcome = state.value if state is TaskState.FAILED else f"was {state}"
    return f": under {gate.toolchain} it {outcome} ({task.after})"


def _log_slowdown(run: MeasuredRun, baseline: Baseline) -> float:
    log_ratio = math.log(run.median) - baseline.log_mean
    return log_ratio if METRICS[run.metric].is_lower_better else -log_ratio


def _baseline(
    run: MeasuredRun, history: Iterable[MeasuredRun], quoted: Sequence[QuotedTarget], gate: GateSection
) -> Baseline | None:
    if gate.against == TARGET:
        return _quoted_baseline(run, quoted)
    same = [
        other
        for other in history
        if other.series_key[1:] == run.series_key[1:] and other.median > 0 and other.has_conditions_of(run)
    ]
    logs = _last_level([math.log(other.median) for other in sorted(same, key=lambda other: other.at)])
    if not logs:
        return None
    name, log_mean = gate.toolchain or "the last good", fmean(logs)
    value = format_quantity(math.exp(log_mean), run.unit)
    return Baseline(log_mean, len(logs), f"{name} {value} ({format_count(len(logs), 'run')})")


def _quoted_baseline(run: MeasuredRun, quoted: Sequence[QuotedTarget]) -> Baseline | None:
    sizes: dict[str, Any] = dict(run.workload)
    target = target_for(
        quoted,
        variant=run.variant.partition("@")[0],
        target=run.target,
        metric=run.metric,
        batch=sizes.get("batch"),
        prompt_tokens=sizes.get("prompt_tokens"),
        new_tokens=sizes.get("new_tokens"),
    )
    if target is None or target.value <= 0:
        return None
    value = format_quantity(target.value, target.unit)
    return Baseline(math.log(target.value), None, f"the target {value} ({target.source})")


def _last_level(logs: Sequence[float]) -> Sequence[float]:
    changes = find_change_points(logs)
    return logs[changes[-1].index if changes else 0 :][-MAX_LEVEL_RUNS:]


def apply_decisions(decisions: Sequence[GateDecision], result: TaskResult) -> TaskResult:
    """Return the result as it is to be stored: failed as too slow or unsure, or with warnings where it passes."""
    slower = [decision for decision in decisions if decision.result.verdict is Verdict.SLOWER]
    unsure = [decision for decision in decisions if decision.result.needs_more_runs]
    for failing, kind in ((slower, FailureKind.TOO_SLOW), (unsure, FailureKind.INCONCLUSIVE)):
        if failing:
            return replace(result, failure=Failure(kind, "; ".join(map(_sentence, failing))))
    undecided = [decision for decision in decisions if decision.result.verdict is Verdict.INCONCLUSIVE]
    warnings = [f"gate: passes without another measurement: {_sentence(decision)}" for decision in undecided]
    metrics: dict[str, dict[str, None]] = defaultdict(dict)
    for decision in decisions:
        if decision.result.verdict is Verdict.UNJUDGED:
            metrics[_why_not_judged(decision)][decision.run.metric] = None
    return passed(result, [*warnings, *(f"gate: {', '.join(names)} passes: {why}" for why, names in metrics.items())])


def passed(result: TaskResult, warnings: Sequence[str]) -> TaskResult:
    """Return a result that passes its gate, with warnings."""
    return replace(result, warnings=(*result.warnings, *warnings))


def _why_not_judged(decision: GateDecision) -> str:
    if decision.baseline is not None:
        return "nothing tells yet how much it varies"
    if not decision.elsewhere:
        return f"there is nothing to compare it with{decision.missing_because or ' yet'}"
    named = ", ".join(decision.elsewhere[:MAX_DEVICES_NAMED])
    others = " and others" if len(decision.elsewhere) > MAX_DEVICES_NAMED else ""
    return f"there is nothing on {decision.run.place} to compare it with yet, only on {named}{others}"


def _sentence(decision: GateDecision) -> str:
    """`itl_ms (batch 4, prompt 2048) 10.4 ms is slower than the last good 9.8 ms (14 runs): +6.1%, ...`."""
    run, result, baseline = decision.run, decision.result, decision.baseline
    assert baseline is not None
    low, mean, high = (100 * math.expm1(log) for log in (result.log_low, result.log_slowdown, result.log_high))
    workload = f" ({workload_words(run.workload)})" if run.workload else ""
    worse = "slower" if METRICS[run.metric].unit in SPEED_UNITS else "worse"
    verb = f"is {worse} than" if result.verdict is Verdict.SLOWER else f"may be {worse} than"
    sign = 1 if METRICS[run.metric].is_lower_better else -1
    value = format_quantity(math.exp(baseline.log_mean + sign * result.log_slowdown), run.unit)
    figures = f"{mean:+.1f}%, {low:+.1f} to {high:+.1f}, noise {100 * decision.sigma:.1f}%"
    return f"{run.metric}{workload} {value} {verb} {baseline.text}: {figures}, in {format_count(result.runs, 'run')}"
