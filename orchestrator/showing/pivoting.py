"""Runs as trackers show them: a row for each variant and workload, a column for each date. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from db.runs import Run
from db.targets import QuotedTarget, target_for
from orchestrator.output import number
from orchestrator.showing.forms import Shown

Workload = tuple[tuple[str, int], ...]

#: What columns may be, and the column of a run.
PIVOTS: dict[str, Callable[[Run], str]] = {
    "date": lambda run: f"{run.at.astimezone():%Y-%m-%d}",
    "week": lambda run: f"{run.at.astimezone():%G-W%V}",
    "month": lambda run: f"{run.at.astimezone():%Y-%m}",
    "toolchain": lambda run: str(run.axes["toolchain"]),
    "node": lambda run: run.node,
    "device": lambda run: run.place,
    "job": lambda run: run.job,
}
IN_TIME = ("date", "week", "month")  #: of these the newest columns are wanted
TRACKED = ("ttft_ms", "itl_ms")  #: what stands in one cell of a tracker
WORKLOAD_SIGNS = {"batch": "", "prompt_tokens": " x ", "new_tokens": " + "}


@dataclass(frozen=True)
class PivotRow:
    """One metric of one workload of one variant."""

    variant: str
    target: str
    metric: str
    unit: str
    workload: Workload
    medians: Mapping[str, float]  #: by column, over all runs in it
    quoted: QuotedTarget | None

    @property
    def key(self) -> tuple[str, str, Workload]:
        """Equal for what one row of a tracker holds."""
        return self.variant, self.target, self.workload


@dataclass(frozen=True)
class Pivot:
    """All of them."""

    columns: tuple[str, ...]
    rows: tuple[PivotRow, ...]
    left_out: int  #: columns that there were beside


def pivot(runs: Iterable[Run], by: str, quoted: Sequence[QuotedTarget] = (), most: int = 0) -> Pivot:
    """Rows in the order of their names; at most so many columns, those in time the newest ones; 0: all."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.is_good:
            key = (_variant(run, by), run.target, run.workload, run.metric, run.unit)
            found[key][PIVOTS[by](run)].append(run.median)
    every = sorted({column for medians in found.values() for column in medians})
    columns = every if not most else every[-most:] if by in IN_TIME else every[:most]
    rows = [
        PivotRow(variant, target, metric, unit, workload, kept, _quoted(quoted, variant, target, metric, workload))
        for (variant, target, workload, metric, unit), values in sorted(found.items(), key=_order)
        if (kept := {column: median(values[column]) for column in columns if column in values})
    ]
    return Pivot(tuple(columns), tuple(rows), len(every) - len(columns))


def _variant(run: Run, by: str) -> str:
    """Its name without what is in the columns."""
    if by == "toolchain":
        return run.variant.removesuffix(f"-{run.axes['toolchain']}")
    return run.variant.partition("@")[0] if by in ("node", "device") else run.variant


def _order(found: tuple[tuple[Any, ...], object]) -> tuple[Any, ...]:
    variant, target, workload, metric, _ = found[0]
    rank = TRACKED.index(metric) if metric in TRACKED else len(TRACKED)
    return variant, target, tuple(size for _, size in workload), rank, metric


def _quoted(
    quoted: Sequence[QuotedTarget], variant: str, target: str, metric: str, workload: Workload
) -> QuotedTarget | None:
    sizes: dict[str, Any] = dict(workload)
    return target_for(quoted, variant=variant, target=target, metric=metric, **sizes) if quoted else None


def as_rows(found: Pivot) -> list[dict[str, Any]]:
    """For programs: one for each metric, with the columns' values by name."""
    return [
        {
            "variant": row.variant,
            "target": row.target,
            **{name: dict(row.workload).get(name) for name in WORKLOAD_SIGNS},
            "metric": row.metric,
            "unit": row.unit,
            "medians": dict(row.medians),
            "quoted": row.quoted.value if row.quoted else None,
            "source": row.quoted.source if row.quoted else None,
        }
        for row in found.rows
    ]


def as_flat_rows(found: Pivot) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """For spreadsheets, with their columns: as above, the values beside each other."""
    rows = []
    for row in as_rows(found):
        medians = row.pop("medians")
        rows.append({**row, **{column: medians.get(column) for column in found.columns}})
    head = ("variant", "target", *WORKLOAD_SIGNS, "metric", "unit")
    return rows, (*head, *found.columns, "quoted", "source")


def is_tracked(found: Pivot) -> bool:
    """Whether one cell shows TTFT and ITL, as trackers do."""
    return {row.metric for row in found.rows} == set(TRACKED)


def shown(found: Pivot) -> Shown:
    """For people: one row for each variant and workload where it is about TTFT and ITL, else one for each metric."""
    together = is_tracked(found)
    groups: dict[tuple[Any, ...], list[PivotRow]] = defaultdict(list)
    for row in found.rows:
        groups[row.key if together else (*row.key, row.metric)].append(row)
    metrics = TRACKED if together else None
    has_quoted = any(row.quoted for row in found.rows)
    head = ("variant", "target", "workload", *([] if together else ["metric"]))
    lines = [
        (
            *(rows[0].variant, rows[0].target, workload_text(rows[0].workload)),
            *([] if together else [rows[0].metric]),
            *(_cell(rows, metrics, partial(_median, column)) for column in found.columns),
            *([_cell(rows, metrics, _quoted_value)] if has_quoted else []),
            *([_distance(rows, metrics, found.columns)] if has_quoted else []),
        )
        for rows in groups.values()
    ]
    last = ("Target", "to target") if has_quoted else ()
    columns = (*head, *found.columns, *last)
    return Shown(columns, lines, right=columns[len(head) :])


def notes(found: Pivot) -> list[str]:
    """What is to be said beside the table."""
    sources = list(dict.fromkeys(row.quoted.source for row in found.rows if row.quoted))
    return [
        *(["cells are (TTFT, ITL) in ms, medians over the runs of a column"] if is_tracked(found) else []),
        *([f"Target: {'; '.join(sources)}"] if sources else []),
        *(
            [f"{found.left_out} more columns: --columns 0 shows all that were read, with --csv on any terminal"]
            if found.left_out
            else []
        ),
    ]


def workload_text(workload: Workload) -> str:
    """`4 x 2048 + 128`: sequences, tokens of each prompt, new tokens."""
    return "".join(f"{WORKLOAD_SIGNS[name]}{size}" for name, size in workload).removeprefix(" x ").removeprefix(" + ")


Value = Callable[[PivotRow], float | None]


def _median(column: str, row: PivotRow) -> float | None:
    return row.medians.get(column)


def _quoted_value(row: PivotRow) -> float | None:
    return row.quoted.value if row.quoted else None


def _cell(rows: Sequence[PivotRow], metrics: Sequence[str] | None, value: Value) -> str:
    values = {row.metric: found for row in rows if (found := value(row)) is not None}
    if not values:
        return ""
    if metrics is None:
        return number(next(iter(values.values())))
    return f"({', '.join(number(values[name]) if name in values else '?' for name in metrics)})"


def _distance(rows: Sequence[PivotRow], metrics: Sequence[str] | None, columns: Sequence[str]) -> str:
    """How far the newest column is from what is quoted, in percent."""
    newest = {row.metric: row.medians[columns[-1]] for row in rows if columns[-1] in row.medians}
    parts = {
        row.metric: f"{(newest[row.metric] / row.quoted.value - 1) * 100:+.1f}%"
        for row in rows
        if row.quoted and row.quoted.value and row.metric in newest
    }
    if not parts:
        return ""
    return ", ".join(parts.get(name, "?") for name in metrics) if metrics else next(iter(parts.values()))
