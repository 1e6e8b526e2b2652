"""Runs as trackers show them: a row for each variant and workload, a column for each date. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from db.reads.runs import DISTURBED, MeasuredRun
from db.writes.targets import QuotedTarget, target_for
from jobs.number_format import format_number
from jobs.toolchains import DEFAULT
from orchestrator.formatting import format_count, format_quantity
from orchestrator.tables import TextTable
from orchestrator.workloads import WORKLOAD_LEGEND, WORKLOAD_SIGNS, Workload, workload_text

if TYPE_CHECKING:
    from datetime import datetime


#: What columns can be, and the column of a run.
PIVOTS: dict[str, Callable[[MeasuredRun], str]] = {
    "date": lambda run: f"{run.at.astimezone():%Y-%m-%d}",
    "week": lambda run: f"{run.at.astimezone():%G-W%V}",
    "month": lambda run: f"{run.at.astimezone():%Y-%m}",
    "toolchain": lambda run: str(run.axes["toolchain"]),
    "engine": lambda run: " ".join(_engine(run)),
    "node": lambda run: run.node,
    "device": lambda run: run.place,
    "job": lambda run: run.job,
}
IN_TIME = ("date", "week", "month", "job")  #: of these the newest columns are shown
TRACKED = ("ttft_ms", "itl_ms")  #: metrics that share a cell of a tracker
IMPORTED = " *"  #: marks imported results, as in the matrix


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
    imported: Mapping[str, str]  #: by column, the files that runs in it come from

    @property
    def key(self) -> tuple[str, str, Workload]:
        """Equal for what one row of a tracker holds."""
        return self.variant, self.target, self.workload


@dataclass(frozen=True)
class Pivot:
    """The rows of a tracker."""

    columns: tuple[str, ...]
    rows: tuple[PivotRow, ...]
    left_out: int  #: columns that are not shown
    is_in_time: bool  #: the last column is the newest


def split_disturbed(runs: Iterable[MeasuredRun]) -> tuple[list[MeasuredRun], int]:
    """Return the runs that were not disturbed, and the number of the others."""
    all_runs = list(runs)
    undisturbed = [run for run in all_runs if not run.facts.get(DISTURBED)]
    return undisturbed, len(all_runs) - len(undisturbed)


def disturbed_note(left_out: int) -> str:
    """Return the note about disturbed runs."""
    return (
        f"{format_count(left_out, 'disturbed measurement')} left out: `haloctl results --json` says what disturbed them"
    )


def pivot(runs: Iterable[MeasuredRun], by: str, quoted: Sequence[QuotedTarget] = (), most: int = 0) -> Pivot:
    """Return rows in the order of their names, with at most `most` columns (0: all); of times the newest."""
    cells: dict[tuple[Any, ...], dict[str, list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
    begins: dict[str, datetime] = {}
    for run in runs:
        if run.is_good:
            key, column = (_variant(run, by), run.target, run.workload, run.metric, run.unit), PIVOTS[by](run)
            cells[key][column].append(run)
            begins[column] = min(run.at, begins.get(column, run.at))
    all_columns = sorted(begins, key=lambda column: (begins[column] if by in IN_TIME else 0, column))
    columns = all_columns if not most else all_columns[-most:] if by in IN_TIME else all_columns[:most]
    rows = [
        PivotRow(
            variant, target, metric, unit, workload,
            medians={column: median(run.median for run in cell) for column, cell in shown.items()},
            quoted=_quoted(quoted, variant, target, metric, workload),
            imported={column: files for column, cell in shown.items() if (files := _files(cell))},
        )
        for (variant, target, workload, metric, unit), values in sorted(cells.items(), key=_order)
        if (shown := {column: values[column] for column in columns if column in values})
    ]  # fmt: skip
    return Pivot(tuple(columns), tuple(rows), len(all_columns) - len(columns), by in IN_TIME)


def _files(runs: Iterable[MeasuredRun]) -> str:
    """Name the files that runs were imported from; empty: all ran here."""
    return ", ".join(sorted({str(run.facts["imported_from"]) for run in runs if run.is_imported}))


def _variant(run: MeasuredRun, by: str) -> str:
    """Return the variant's name without what the columns tell."""
    name, at, place = run.variant.partition("@")
    if by in ("toolchain", "engine"):
        name = name.removesuffix(f"-{run.axes['toolchain']}")
    if by == "engine":
        name = name.removesuffix(f"-{run.axes['engine']}")
    return name if by in ("node", "device") else f"{name}{at}{place}"


def _engine(run: MeasuredRun) -> Iterator[str]:
    yield str(run.axes["engine"])
    if run.axes["toolchain"] != DEFAULT:
        yield f"({run.axes['toolchain']})"


def _order(item: tuple[tuple[Any, ...], object]) -> tuple[Any, ...]:
    variant, target, workload, metric, _ = item[0]
    rank = TRACKED.index(metric) if metric in TRACKED else len(TRACKED)
    return variant, target, workload, rank, metric


def _quoted(
    quoted: Sequence[QuotedTarget], variant: str, target: str, metric: str, workload: Workload
) -> QuotedTarget | None:
    sizes: dict[str, Any] = dict(workload)
    if not quoted or "evaluation" in sizes:
        return None
    return target_for(quoted, variant=variant, target=target, metric=metric, **sizes)


def to_json(table: Pivot) -> list[dict[str, Any]]:
    """Return a row for each metric, with medians by column, for programs."""
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
            "imported": dict(row.imported),
        }
        for row in table.rows
    ]


def to_csv(table: Pivot) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows with a cell for each column, and the columns, for spreadsheets."""
    rows = []
    for row in to_json(table):
        medians = row.pop("medians")
        rows.append({**row, **{column: medians.get(column) for column in table.columns}})
    head = ("variant", "target", *WORKLOAD_SIGNS, "metric", "unit")
    return rows, (*head, *table.columns, "quoted", "source", "imported")


def is_tracked(table: Pivot) -> bool:
    """Whether a cell shows both TTFT and ITL, as trackers do."""
    return {row.metric for row in table.rows} == set(TRACKED)


def to_table(table: Pivot) -> TextTable:
    """Return a line for each variant and workload if it is about TTFT and ITL, else one for each metric."""
    together = is_tracked(table)
    groups: dict[tuple[Any, ...], list[PivotRow]] = defaultdict(list)
    for row in table.rows:
        groups[row.key if together else (*row.key, row.metric)].append(row)
    metrics = TRACKED if together else None
    has_quoted = any(row.quoted for row in table.rows)
    head = ("variant", "target", "workload", *([] if together else ["metric"]))
    lines = [
        (
            *(rows[0].variant, rows[0].target, workload_text(rows[0].workload)),
            *([] if together else [rows[0].metric]),
            *(_cell(rows, metrics, partial(_median, column)) + _mark(rows, column) for column in table.columns),
            *([_cell(rows, metrics, _quoted_value)] if has_quoted else []),
            *([_distance(rows, metrics, table)] if has_quoted else []),
        )
        for rows in groups.values()
    ]
    last = ("Target", "to target") if has_quoted else ()
    columns = (*head, *table.columns, *last)
    return TextTable(columns, lines, right=columns[len(head) :])


def pivot_notes(table: Pivot) -> list[str]:
    """Return the notes below the table."""
    sources = list(dict.fromkeys(row.quoted.source for row in table.rows if row.quoted))
    files = sorted({file for row in table.rows for file in row.imported.values()})
    return [
        *(["cells are (TTFT, ITL) in ms, medians over the runs of a column"] if is_tracked(table) else []),
        *([WORKLOAD_LEGEND] if any(row.workload for row in table.rows) else []),
        *([f"Target: {'; '.join(sources)}"] if sources else []),
        *([f"* imported from {', '.join(files)}"] if files else []),
        *(
            [f"{table.left_out} more columns: --columns 0 shows all; --csv, whatever the width of the terminal"]
            if table.left_out
            else []
        ),
    ]


Value = Callable[[PivotRow], float | None]


def _median(column: str, row: PivotRow) -> float | None:
    return row.medians.get(column)


def _quoted_value(row: PivotRow) -> float | None:
    return row.quoted.value if row.quoted else None


def _cell(rows: Sequence[PivotRow], metrics: Sequence[str] | None, value: Value) -> str:
    values = {row.metric: cell for row in rows if (cell := value(row)) is not None}
    if not values:
        return ""
    if metrics is None:
        return format_quantity(next(iter(values.values())), rows[0].unit)
    return f"({', '.join(format_number(values[name]) if name in values else '?' for name in metrics)})"


def _mark(rows: Sequence[PivotRow], column: str) -> str:
    return IMPORTED if any(column in row.imported for row in rows) else ""


def _distance(rows: Sequence[PivotRow], metrics: Sequence[str] | None, table: Pivot) -> str:
    """Return how far the newest value is from the target in percent; of columns not in time that of the last."""
    parts = {
        row.metric: f"{(row.medians[newest] / row.quoted.value - 1) * 100:+.1f}%"
        for row in rows
        if row.quoted and row.quoted.value and (newest := _newest(row, table)) in row.medians
    }
    if not parts:
        return ""
    return ", ".join(parts.get(name, "?") for name in metrics) if metrics else next(iter(parts.values()))


def _newest(row: PivotRow, table: Pivot) -> str:
    if not table.is_in_time:
        return table.columns[-1]
    return next(column for column in reversed(table.columns) if column in row.medians)
