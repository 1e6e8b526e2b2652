"""The matrix as a table of PASS and FAIL with notes, and as JSON objects. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from db.reads.matrix import CellRow, MatrixRow, Median
from jobs.exporters import stages_of
from jobs.stages import STAGES
from jobs.stages.base import Stage
from jobs.state import TaskState
from orchestrator.tables import TextTable

#: The first word of a cell.
STATE_LABELS: dict[TaskState, str] = {
    TaskState.PENDING: "pending",
    TaskState.QUEUED: "queued",
    TaskState.RUNNING: "running",
    TaskState.CANCELLING: "cancelling",
    TaskState.SUCCEEDED: "PASS",
    TaskState.CACHED: "PASS",
    TaskState.FAILED: "FAIL",
    TaskState.BLOCKED: "blocked",
    TaskState.CANCELLED: "cancelled",
}
UNSCHEDULABLE = "unschedulable"
NOT_APPLICABLE = "\N{EN DASH}"  #: the variant's engine has no such stage
IMPORTED = " *"  #: marks a result that was imported
LEGEND = "MFMA a+b: matrix instructions in the kernels of prefill and of decode"


def to_table(rows: Sequence[MatrixRow]) -> TextTable:
    """Return a table with a column for each stage that some variant has."""
    stages = [name for name in STAGES if any(name in row.stages for row in rows)]
    columns = ("variant", "target", *(STAGES[name].title for name in stages))
    lines = tuple((row.variant, row.target, *(format_row_cell(row, name) for name in stages)) for row in rows)
    return TextTable(columns, lines, notes=matrix_notes(rows))


def format_row_cell(row: MatrixRow, stage: str) -> str:
    """Return the cell of a row; stages that the row's engine does not have are marked."""
    row_stage = stages_of(row).get(stage)
    if row_stage is None or not row_stage.applies_to(row):
        return NOT_APPLICABLE
    return format_cell(row_stage, row.target, row.stages.get(stage))


def format_cell(stage: Stage, target: str, cell: CellRow | None) -> str:
    """Return a cell's state with the stage's main figure; an empty text for no cell."""
    if cell is None:
        return ""
    if cell.is_unschedulable:
        return UNSCHEDULABLE
    label = STATE_LABELS[cell.state]
    mark = IMPORTED if cell.imported_from else ""
    if cell.failure:
        return f"{label} {cell.failure.kind}{mark}"
    figure = stage.figure(_first_medians(cell.metrics), target) if label == "PASS" else ""
    return f"{f'{label} {figure}'.strip()}{' (!)' if cell.warnings else ''}{mark}"


def _first_medians(metrics: Sequence[Median]) -> dict[str, float]:
    """Return each metric's median in its first workload, the smallest batch with the shortest prompt."""
    return {metric.metric: metric.median for metric in reversed(metrics)}


def matrix_notes(rows: Sequence[MatrixRow]) -> list[str]:
    """Return failures, warnings and waits, each once with the cells that it is about, and a legend."""
    cells_by_note: dict[str, list[str]] = {}
    for row in rows:
        for stage, cell in row.stages.items():
            place = f"{row.variant} {row.target} {STAGES[stage].title}"
            for note in _cell_notes(cell):
                cells_by_note.setdefault(note, []).append(place)
    notes = [f"{note}: {_group_by_row(places)}" for note, places in cells_by_note.items()]
    metrics = [metric for row in rows for cell in row.stages.values() for metric in cell.metrics]
    legend = [LEGEND] if any(metric.metric == "mfma_prefill" for metric in metrics) else []
    return [*notes, *_workload_notes(rows), *legend]


def _cell_notes(cell: CellRow) -> Iterator[str]:
    if cell.failure:
        yield f"FAIL {cell.failure.kind}: {cell.failure.message} ({cell.task})"
    elif cell.is_unschedulable and cell.waits_for:
        yield f"{UNSCHEDULABLE}: {cell.waits_for}"
    if cell.imported_from:
        yield f"* imported from {cell.imported_from}"
    for warning in cell.warnings:
        yield f"warning: {warning}"


def _workload_notes(rows: Sequence[MatrixRow]) -> list[str]:
    """Return the workload of the shown TTFT and ITL, where a cell has several."""
    workloads_by_cell = [
        workloads
        for row in rows
        for cell in row.stages.values()
        if (
            workloads := [(metric.batch, metric.prompt_tokens) for metric in cell.metrics if metric.metric == "ttft_ms"]
        )
    ]
    if all(len(set(workloads)) == 1 for workloads in workloads_by_cell):
        return []
    first, *others = {workloads[0] for workloads in workloads_by_cell}
    sizes = [f"{name} {size}" for name, size in zip(("batch", "prompt"), first, strict=True) if size is not None]
    which = "each variant's smallest batch and shortest prompt" if others else ", ".join(sizes)
    return [f"TTFT and ITL: {which}; `haloctl results --pivot date` shows all workloads"]


def _group_by_row(places: Sequence[str]) -> str:
    """Return `tiny-llama-FP16-TP8 mi300x (invocation, numerics)`, row by row."""
    columns_by_row: dict[str, list[str]] = {}
    for place in dict.fromkeys(places):
        row, _, column = place.rpartition(" ")
        columns_by_row.setdefault(row, []).append(column)
    return "; ".join(f"{row} ({', '.join(columns)})" for row, columns in columns_by_row.items())


def to_json(rows: Iterable[MatrixRow]) -> list[dict[str, Any]]:
    """Return an object for each row, with the state, failure and medians of each stage."""
    return [
        {
            "model": row.model,
            "variant": row.variant,
            "target": row.target,
            **row.axes,
            "stages": {name: _cell_json(cell) for name, cell in row.stages.items()},
        }
        for row in rows
    ]


def _cell_json(cell: CellRow) -> dict[str, Any]:
    return {
        "job": cell.job,
        "task": cell.task,
        "state": cell.state.value,
        "failure": {"kind": cell.failure.kind.value, "message": cell.failure.message} if cell.failure else None,
        "waits_for": cell.waits_for,
        "is_unschedulable": cell.is_unschedulable,
        "blocked_by": cell.blocked_by,
        "cached_from": cell.cached_from,
        "warnings": list(cell.warnings),
        "imported_from": cell.imported_from,
        "medians": [asdict(metric) for metric in cell.metrics],
    }
