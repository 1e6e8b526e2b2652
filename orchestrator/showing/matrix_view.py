"""The matrix as people read it: PASS and FAIL in cells, the reasons in notes below. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from db.matrix import CellRow, MatrixRow, Median
from jobs.stages import STAGES, stages_of
from jobs.state import TaskState
from jobs.targets import TARGETS
from jobs.task import GIB
from jobs.variants import is_quantized
from orchestrator.output import number

#: A cell's first word.
WORDS: dict[TaskState, str] = {
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


NOT_APPLICABLE = "\N{EN DASH}"  #: the variant's engine has no such stage
IMPORTED = " *"  #: behind what did not run here
LEGEND = "MFMA a+b: matrix instructions in the kernels of prefill and of decode"


@dataclass(frozen=True)
class View:
    """Columns and rows of the table, and what is to be said below it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def view(rows: Sequence[MatrixRow]) -> View:
    """Only the columns of stages that some row has."""
    stages = [name for name in STAGES if any(name in row.stages for row in rows)]
    columns = ("variant", "target", *(STAGES[name].title for name in stages))
    lines = tuple((row.variant, row.target, *(_text(row, name) for name in stages)) for row in rows)
    return View(columns, lines, tuple(notes(rows)))


def _text(row: MatrixRow, stage: str) -> str:
    does = stage in stages_of(row) and (stage != "quantize" or is_quantized(row))
    return cell_text(stage, row.target, row.stages.get(stage)) if does else NOT_APPLICABLE


def cell_text(stage: str, target: str, cell: CellRow | None) -> str:
    """A verdict, and the figure that the stage is about."""
    if cell is None:
        return ""
    if cell.is_stuck:
        return "waits"
    word = WORDS[cell.state]
    mark = IMPORTED if cell.imported_from else ""
    if cell.failure:
        return f"{word} {cell.failure.kind}{mark}"
    figure = FIGURES[stage](cell.metrics, target) if word == "PASS" and stage in FIGURES else ""
    return f"{f'{word} {figure}'.strip()}{' (!)' if cell.warnings else ''}{mark}"


def median(metrics: Iterable[Median], name: str) -> float | None:
    """A metric in its first workload, which is the smallest batch with the shortest prompt."""
    return next((found.median for found in metrics if found.metric == name), None)


def _export(metrics: Sequence[Median], target: str) -> str:
    return _cost(metrics, ("trace_s", "parameters_s"), "export_peak_bytes")


def _compile(metrics: Sequence[Median], target: str) -> str:
    cost = _cost(metrics, ("compile_s",), "compile_peak_bytes")
    if not TARGETS[target].matrix_instruction or median(metrics, "mfma_prefill") is None:
        return cost
    counts = [median(metrics, f"mfma_{entry}") or 0 for entry in ("prefill", "decode")]
    return ", ".join((*([cost] if cost else []), f"{counts[0]:.0f}+{counts[1]:.0f} MFMA"))


def _cost(metrics: Sequence[Median], times: Iterable[str], memory: str) -> str:
    """`2.0 s, 0.5 GiB`: how long it took, and its memory at the peak."""
    took, peak = [median(metrics, name) for name in times], median(metrics, memory)
    if None in took or peak is None:
        return ""
    return f"{number(sum(one or 0 for one in took))} s, {peak / GIB:.1f} GiB"


def _numerics(metrics: Sequence[Median], target: str) -> str:
    perplexity, increase = median(metrics, "perplexity"), median(metrics, "perplexity_increase_percent")
    return "" if perplexity is None or increase is None else f"ppl {perplexity:.2f} ({increase:+.2f}%)"


def _benchmark(metrics: Sequence[Median], target: str) -> str:
    ttft, itl = median(metrics, "ttft_ms"), median(metrics, "itl_ms")
    return "" if ttft is None or itl is None else f"TTFT {number(ttft)} ms, ITL {number(itl)} ms"


#: What a passed cell shows beside its verdict.
FIGURES = {"export": _export, "compile": _compile, "numerics": _numerics, "benchmark": _benchmark}


def notes(rows: Sequence[MatrixRow]) -> list[str]:
    """Failures, warnings and waits, each said once with the cells that it is about."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for stage, cell in row.stages.items():
            where = f"{row.variant} {row.target} {STAGES[stage].title}"
            if cell.failure:
                found.setdefault(f"FAIL {cell.failure.kind}: {cell.failure.message} ({cell.task})", []).append(where)
            elif cell.is_stuck and cell.waits_for:
                found.setdefault(f"waits: {cell.waits_for}", []).append(where)
            if cell.imported_from:
                found.setdefault(f"* imported from {cell.imported_from}", []).append(where)
            for warning in cell.warnings:
                found.setdefault(f"warning: {warning}", []).append(where)
    said = [f"{text}: {_grouped(places)}" for text, places in found.items()]
    legend = [LEGEND] if any("mfma_prefill" in _metrics(row) for row in rows) else []
    return [*said, *_timed(rows), *legend]


def _timed(rows: Sequence[MatrixRow]) -> list[str]:
    """Of which workload TTFT and ITL are, where there are several."""
    timed = [
        [(found.batch, found.prompt_tokens) for found in cell.metrics if found.metric == "ttft_ms"]
        for row in rows
        for cell in row.stages.values()
        if "ttft_ms" in {found.metric for found in cell.metrics}
    ]
    if not any(len(set(workloads)) > 1 for workloads in timed):
        return []
    first, *others = {workloads[0] for workloads in timed}
    told = [f"{name} {size}" for name, size in zip(("batch", "prompt"), first, strict=True) if size is not None]
    which = "each variant's smallest batch and shortest prompt" if others else ", ".join(told)
    return [f"TTFT and ITL: {which}; `haloctl results --pivot date` has those of all workloads"]


def _metrics(row: MatrixRow) -> set[str]:
    return {found.metric for cell in row.stages.values() for found in cell.metrics}


def _grouped(places: Sequence[str]) -> str:
    """`tiny-llama-FP16-TP8 mi300x (invocation, numerics)`, row by row."""
    rows: dict[str, list[str]] = {}
    for place in dict.fromkeys(places):
        row, _, column = place.rpartition(" ")
        rows.setdefault(row, []).append(column)
    return "; ".join(f"{row} ({', '.join(columns)})" for row, columns in rows.items())


def as_json(rows: Iterable[MatrixRow]) -> list[dict[str, Any]]:
    """One object a row; for each stage its state, failure and medians."""
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
        "is_stuck": cell.is_stuck,
        "blocked_by": cell.blocked_by,
        "cached_from": cell.cached_from,
        "warnings": list(cell.warnings),
        "imported_from": cell.imported_from,
        "medians": [asdict(found) for found in cell.metrics],
    }
