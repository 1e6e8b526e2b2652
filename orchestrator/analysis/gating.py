"""Gates applied to results on their way to the database: what `gates` decides from is read here."""

from collections.abc import Sequence

from db.connection.engine import Database
from db.reads.gated_attempts import GatedAttempt, gated_attempts
from db.reads.run_filter import RunFilter
from db.reads.runs import MeasuredRun, runs
from db.schema.ids import epoch_of
from db.writes.targets import quoted_targets
from jobs.sections import GateSection
from jobs.task import TaskResult
from orchestrator.analysis import exact_gates, gates

MAX_HISTORY = 2000  #: measurements that are looked back on


def apply_gates(database: Database, results: Sequence[TaskResult]) -> list[TaskResult]:
    """Return results as they are to be stored; those without a gate, or that failed anyhow, unchanged."""
    measured = [result.attempt for result in results if result.failure is None and result.measurements]
    tasks = {task.attempt: task for task in gated_attempts(database, measured)} if measured else {}
    return [
        _apply_gate(database, result, tasks[result.attempt]) if result.attempt in tasks else result
        for result in results
    ]


def _apply_gate(database: Database, result: TaskResult, task: GatedAttempt) -> TaskResult:
    gate = GateSection.model_validate(task.gate)
    if gate.exact:
        result = exact_gates.judge(result, task, gate, _history(database, task, gate, gate.exact))
    return _apply_timings(database, result, task, gate) if gate.timings and result.failure is None else result


def _apply_timings(database: Database, result: TaskResult, task: GatedAttempt, gate: GateSection) -> TaskResult:
    latest, disturbed_by = gates.gated_runs(result, task, gate)
    if missing := gates.unmeasured(result, gate):
        result = gates.passed(result, [f"gate: {', '.join(missing)} passes: it was not measured"])
    if not latest and not disturbed_by:
        return result  # of a stage that measures none of the gate's metrics
    earlier = [
        run
        for run in runs(database, RunFilter(gate.timings, tasks=(task.task,)))
        if run.epoch > task.base_epoch and run.attempt != result.attempt
    ]
    if not latest and not earlier:
        return gates.passed(result, [f"gate: not judged: {disturbed_by}"])
    history = [run for run in _history(database, task, gate, gate.timings) if run.task != task.task]
    quoted = quoted_targets(database) if gate.against == gates.TARGET else []
    is_last = epoch_of(result.attempt) - task.base_epoch >= gate.runs
    return gates.apply_decisions(
        gates.decide(task, gate, [*earlier, *latest], history, quoted, is_last=is_last), result
    )


def _history(database: Database, task: GatedAttempt, gate: GateSection, metrics: tuple[str, ...]) -> list[MeasuredRun]:
    """Read good runs of the variant that is the baseline, newest first, on any device; none that were imported."""
    toolchain = gate.toolchain
    if toolchain is None:
        history = runs(database, RunFilter(metrics, variants=(task.variant,)), MAX_HISTORY)
    else:
        axes = {**task.axes, "toolchain": toolchain}
        of_toolchain = runs(database, RunFilter(metrics, model=task.model, toolchain=toolchain), MAX_HISTORY)
        history = [run for run in of_toolchain if run.axes == axes]
    return [run for run in history if run.is_good and not run.is_imported]
