"""Runs as trackers show them: a row for each variant and workload, a column for each date. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from db.runs import DISTURBED, Run
from db.targets import QuotedTarget, target_for
from jobs.toolchains import DEFAULT
from orchestrator.output import number, quantity
from orchestrator.showing.forms import Shown
from orchestrator.showing.workloads import WORKLOAD_LEGEND, WORKLOAD_SIGNS, Workload, workload_text

if TYPE_CHECKING:
    from datetime import datetime


#: What columns may be, and the column of a run.
PIVOTS: dict[str, Callable[[Run], str]] = {
    "date": lambda run: f"{run.at.astimezone():%Y-%m-%d}",
    "week": lambda run: f"{run.at.astimezone():%G-W%V}",
    "month": lambda run: f"{run.at.astimezone():%Y-%m}",
    "toolchain": lambda run: str(run.axes["toolchain"]),
    "engine": lambda run: " ".join(_engine(run)),
    "node": lambda run: run.node,
    "device": lambda run: run.place,
    "job": lambda run: run.job,
}
IN_TIME = ("date", "week", "month", "job")  #: of these the newest columns are wanted
TRACKED = ("ttft_ms", "itl_ms")  #: what stands in one cell of a tracker
IMPORTED = " *"  #: behind what did not run here, as in the matrix


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
    """All of them."""

    columns: tuple[str, ...]
    rows: tuple[PivotRow, ...]
    left_out: int  #: columns that there were beside
    is_in_time: bool  #: the newest column is the last


def parted(runs: Iterable[Run]) -> tuple[list[Run], int]:
    """Runs that nothing else disturbed, and how many others there are."""
    every = list(runs)
    calm = [run for run in every if not run.facts.get(DISTURBED)]
    return calm, len(every) - len(calm)


def disturbed_note(left_out: int) -> str:
    """What is to be said of those others."""
    was = "measurement is" if left_out == 1 else "measurements are"
    return f"{left_out} {was} left out that something else disturbed: `haloctl results --json` says what it was"


def pivot(runs: Iterable[Run], by: str, quoted: Sequence[QuotedTarget] = (), most: int = 0) -> Pivot:
    """Rows in the order of their names; at most so many columns, those in time the newest ones; 0: all."""
    found: dict[tuple[Any, ...], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    begins: dict[str, datetime] = {}
    for run in runs:
        if run.is_good:
            key, column = (_variant(run, by), run.target, run.workload, run.metric, run.unit), PIVOTS[by](run)
            found[key][column].append(run)
            begins[column] = min(run.at, begins.get(column, run.at))
    every = sorted(begins, key=lambda column: (begins[column] if by in IN_TIME else 0, column))
    columns = every if not most else every[-most:] if by in IN_TIME else every[:most]
    rows = [
        PivotRow(
            variant, target, metric, unit, workload,
            medians={column: median(run.median for run in ones) for column, ones in kept.items()},
            quoted=_quoted(quoted, variant, target, metric, workload),
            imported={column: files for column, ones in kept.items() if (files := _files(ones))},
        )
        for (variant, target, workload, metric, unit), values in sorted(found.items(), key=_order)
        if (kept := {column: values[column] for column in columns if column in values})
    ]  # fmt: skip
    return Pivot(tuple(columns), tuple(rows), len(every) - len(columns), by in IN_TIME)


def _files(runs: Iterable[Run]) -> str:
    """What somebody else wrote down comes from them; empty: all of it ran here."""
    return ", ".join(sorted({str(run.facts["imported_from"]) for run in runs if run.is_imported}))


def _variant(run: Run, by: str) -> str:
    """Its name without what is in the columns."""
    name, at, place = run.variant.partition("@")
    if by in ("toolchain", "engine"):
        name = name.removesuffix(f"-{run.axes['toolchain']}")
    if by == "engine":
        name = name.removesuffix(f"-{run.axes['engine']}")
    return name if by in ("node", "device") else f"{name}{at}{place}"


def _engine(run: Run) -> Iterator[str]:
    yield str(run.axes["engine"])
    if run.axes["toolchain"] != DEFAULT:
        yield f"({run.axes['toolchain']})"


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
            "imported": dict(row.imported),
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
    return rows, (*head, *found.columns, "quoted", "source", "imported")


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
            *(_cell(rows, metrics, partial(_median, column)) + _mark(rows, column) for column in found.columns),
            *([_cell(rows, metrics, _quoted_value)] if has_quoted else []),
            *([_distance(rows, metrics, found)] if has_quoted else []),
        )
        for rows in groups.values()
    ]
    last = ("Target", "to target") if has_quoted else ()
    columns = (*head, *found.columns, *last)
    return Shown(columns, lines, right=columns[len(head) :])


def notes(found: Pivot) -> list[str]:
    """What is to be said beside the table."""
    sources = list(dict.fromkeys(row.quoted.source for row in found.rows if row.quoted))
    files = sorted({file for row in found.rows for file in row.imported.values()})
    return [
        *(["cells are (TTFT, ITL) in ms, medians over the runs of a column"] if is_tracked(found) else []),
        *([WORKLOAD_LEGEND] if any(row.workload for row in found.rows) else []),
        *([f"Target: {'; '.join(sources)}"] if sources else []),
        *([f"* imported from {', '.join(files)}"] if files else []),
        *(
            [f"{found.left_out} more columns: --columns 0 shows all that were read, with --csv on any terminal"]
            if found.left_out
            else []
        ),
    ]


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
        return quantity(next(iter(values.values())), rows[0].unit)
    return f"({', '.join(number(values[name]) if name in values else '?' for name in metrics)})"


def _mark(rows: Sequence[PivotRow], column: str) -> str:
    return IMPORTED if any(column in row.imported for row in rows) else ""


def _distance(rows: Sequence[PivotRow], metrics: Sequence[str] | None, found: Pivot) -> str:
    """How far its newest value is from what is quoted, in percent; that of the last column where none is newest."""
    parts = {
        row.metric: f"{(row.medians[newest] / row.quoted.value - 1) * 100:+.1f}%"
        for row in rows
        if row.quoted and row.quoted.value and (newest := _newest(row, found)) in row.medians
    }
    if not parts:
        return ""
    return ", ".join(parts.get(name, "?") for name in metrics) if metrics else next(iter(parts.values()))


def _newest(row: PivotRow, found: Pivot) -> str:
    if not found.is_in_time:
        return found.columns[-1]
    return next(column for column in reversed(found.columns) if column in row.medians)
