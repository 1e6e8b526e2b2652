"""Results on their way to the database: those of jobs with a gate are judged, and fail or are measured again."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

from db.engine import Database
from db.gated import Gated, gated
from db.ids import epoch_of
from db.runs import DISTURBED, Chosen, Run, driver_of, runs, workload_of
from db.targets import QuotedTarget, quoted_targets, target_for
from jobs.metrics import METRICS
from jobs.spec import Gate
from jobs.state import RETRYABLE, Failure, FailureKind, TaskState
from jobs.task import TaskResult
from orchestrator.deciding.change_points import splits
from orchestrator.deciding.gates import Reference, Ruled, Ruling, rule
from orchestrator.deciding.noise import learned
from orchestrator.deciding.sides import told
from orchestrator.output import quantity

HISTORY = 2000  #: measurements that are looked back on
LEVEL = 50  #: runs of the last level that are compared with, the newest ones
TARGET = "target"  #: what a gate may be against
NAMED = 2  #: devices, in a sentence


@dataclass(frozen=True)
class Judged:
    """One metric in one workload."""

    run: Run
    reference: Reference | None  #: None: there is nothing to compare with yet
    ruled: Ruled
    sigma: float = 0.0
    elsewhere: tuple[str, ...] = ()  #: where there would be something to compare with, were it the same device
    why: str = ""  #: there is nothing to compare with


def judged(database: Database, results: Sequence[TaskResult]) -> list[TaskResult]:
    """Results as they are to be stored; those without a gate, or that failed anyhow, as they are."""
    measured = {one.attempt: one for one in results if one.failure is None and one.measurements}
    gates = {one.attempt: one for one in gated(database, list(measured))} if measured else {}
    return [_judged(database, one, gates[one.attempt]) if one.attempt in gates else one for one in results]


def _judged(database: Database, result: TaskResult, task: Gated) -> TaskResult:
    gate = Gate.model_validate(task.gate)
    latest, disturbed = _runs_of(result, task, gate)
    if not latest and not disturbed:
        return result  # another stage's
    earlier = [
        run
        for run in runs(database, Chosen(tuple(gate.metrics), tasks=(task.task,)))
        if run.epoch > task.asked_epoch and run.attempt != result.attempt
    ]
    if not latest and not earlier:
        return _passed(result, [f"gate: not judged: {disturbed}"])
    is_last = epoch_of(result.attempt) - task.asked_epoch >= gate.runs
    found = _judge(database, task, gate, [*earlier, *latest], is_last=is_last)
    return _as_ruled(result, found)


def _as_ruled(result: TaskResult, found: Sequence[Judged]) -> TaskResult:
    failing = [one for one in found if one.ruled.ruling is Ruling.FAILS]
    unsure = [one for one in found if one.ruled.ruling is Ruling.UNSURE]
    for ones, kind in ((failing, FailureKind.TOO_SLOW), (unsure, FailureKind.UNSURE)):
        if ones:
            return replace(result, failure=Failure(kind, "; ".join(map(_in_words, ones))))
    untold = [f"gate: passes, for it is not measured again: {_in_words(one)}" for one in found if not one.ruled.is_told]
    new: dict[str, list[str]] = defaultdict(list)
    for one in found:
        if one.reference is None:
            new[_what_there_is(one)].append(one.run.metric)
    names = {why: ", ".join(dict.fromkeys(metrics)) for why, metrics in new.items()}
    return _passed(result, [*untold, *(f"gate: {metrics} passes: {why}" for why, metrics in names.items())])


def _what_there_is(one: Judged) -> str:
    if not one.elsewhere:
        return f"there is nothing to compare it with{one.why or ' yet'}"
    known = ", ".join(one.elsewhere[:NAMED]) + (" and others" if len(one.elsewhere) > NAMED else "")
    return f"there is nothing on {one.run.place} to compare it with yet, only on {known}"


def _passed(result: TaskResult, warnings: list[str]) -> TaskResult:
    return replace(result, warnings=(*result.warnings, *warnings))


def _runs_of(result: TaskResult, task: Gated, gate: Gate) -> tuple[list[Run], str]:
    """Of the metrics that are gated, those that nothing disturbed; and what disturbed the others."""
    found, disturbed = [], ""
    for one in result.measurements:
        if one.metric not in gate.metrics:
            continue
        disturbed = str(one.context.get(DISTURBED) or disturbed)
        value = median(one.samples) if one.samples else 0.0
        if not one.context.get(DISTURBED) and value > 0:
            found.append(_run(one.metric, value, one.context, task))
    return found, disturbed


def _run(metric: str, value: float, facts: Any, task: Gated) -> Run:
    return Run(
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
        at=datetime.now(UTC),
        is_good=False,
    )


def _judge(database: Database, task: Gated, gate: Gate, own: Sequence[Run], *, is_last: bool) -> list[Judged]:
    """Each metric and workload by all its runs since the task was asked for, each beside its own device's past."""
    history = [run for run in _history(database, task, gate) if run.task != task.task]
    noises = learned(history)  # what is judged has no say in it
    quoted = quoted_targets(database) if gate.against == TARGET else []
    cells: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in sorted(own, key=lambda run: run.at):
        cells[run.metric, run.workload].append(run)
    found = []
    for cell in cells.values():
        references = {run.place: _reference(run, history, quoted, gate) for run in cell}
        known = [(run, reference) for run in cell if (reference := references[run.place])]
        noise = noises.of(*cell)
        if not known or noise is None:
            same = [] if gate.against == TARGET else [one for one in history if one.bench[1:4] == cell[-1].bench[1:4]]
            elsewhere = tuple(sorted({one.place for one in same} - set(references)))
            why = _what_became_of_it(task, gate)
            found.append(Judged(cell[-1], None, Ruled(Ruling.PASSES, 0), elsewhere=elsewhere, why=why))
            continue
        excess = [_excess(run, reference) for run, reference in known]
        runs_most = len(known) if is_last else gate.runs  # some may have been disturbed, or elsewhere
        ruled = rule(excess, known[-1][1], noise, gate.slowdown_percent, runs_most, len(cells))
        found.append(Judged(known[-1][0], known[-1][1], ruled, noise.sigma))
    return found


def _what_became_of_it(task: Gated, gate: Gate) -> str:
    """Why what it is compared with has no numbers, if its own job was to measure them and did not."""
    if task.after is None or task.after_state is None or TaskState(task.after_state) not in RETRYABLE:
        return ""
    state = TaskState(task.after_state)
    what = state.value if state is TaskState.FAILED else f"was {state}"
    return f": under {gate.toolchain} it {what} ({task.after})"


def _excess(run: Run, reference: Reference) -> float:
    """The logarithm of how many times as slow it is."""
    log = math.log(run.median) - reference.log
    return log if METRICS[run.metric].is_lower_better else -log


def _history(database: Database, task: Gated, gate: Gate) -> list[Run]:
    """Good runs of the variant that it is held against, newest first; none that were imported, wherever they ran."""
    metrics = tuple(gate.metrics)
    name = gate.toolchain
    if name is None:
        return _own(runs(database, Chosen(metrics, variants=(task.variant,)), HISTORY))
    axes = {**task.axes, "toolchain": name}
    others = runs(database, Chosen(metrics, model=task.model, toolchain=name), HISTORY)
    return [run for run in _own(others) if run.axes == axes]


def _own(found: Iterable[Run]) -> list[Run]:
    return [run for run in found if run.is_good and not run.is_imported]


def _reference(run: Run, history: Iterable[Run], quoted: Sequence[QuotedTarget], gate: Gate) -> Reference | None:
    if gate.against == TARGET:
        sizes = dict(run.workload)
        held = target_for(
            quoted,
            variant=run.variant.partition("@")[0],
            target=run.target,
            metric=run.metric,
            batch=sizes.get("batch"),
            prompt_tokens=sizes.get("prompt_tokens"),
            new_tokens=sizes.get("new_tokens"),
        )
        if held is None or held.value <= 0:
            return None
        return Reference(math.log(held.value), None, f"the target {quantity(held.value, held.unit)} ({held.source})")
    alike = [one for one in history if one.bench[1:] == run.bench[1:] and one.median > 0]
    logs = _last_level([math.log(one.median) for one in sorted(alike, key=lambda one: one.at)])
    if not logs:
        return None
    what = gate.toolchain or "the last good"
    middle = fmean(logs)
    count = f"{len(logs)} run" if len(logs) == 1 else f"{len(logs)} runs"
    return Reference(middle, len(logs), f"{what} {quantity(math.exp(middle), run.unit)} ({count})")


def _last_level(logs: Sequence[float]) -> Sequence[float]:
    found = splits(logs)
    return logs[found[-1].index if found else 0 :][-LEVEL:]


def _in_words(one: Judged) -> str:
    """`itl_ms (batch 4, prompt 2048) 10.4 ms is 6.1% slower than the last good 9.8 ms (14 runs) ...`."""
    ruled, metric = one.ruled, one.run.metric
    low, middle, high = (100 * math.expm1(value) for value in (ruled.low, ruled.slower, ruled.high))
    where = f" ({told(one.run.workload)})" if one.run.workload else ""
    words = one.reference.words if one.reference else ""
    figures = f"{middle:+.1f}%, {low:+.1f} to {high:+.1f}, noise {100 * one.sigma:.1f}%"
    verb = "is slower than" if ruled.ruling is Ruling.FAILS else "may be slower than"
    runs_told = "1 run" if ruled.runs == 1 else f"{ruled.runs} runs"
    level = (one.reference.log if one.reference else 0.0) + ruled.slower * (
        1 if METRICS[metric].is_lower_better else -1
    )
    value = quantity(math.exp(level), one.run.unit)
    return f"{metric}{where} {value} {verb} {words}: {figures}, in {runs_told}"
