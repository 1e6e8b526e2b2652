"""Runs grouped by columns that people choose. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from db.reads.runs import MeasuredRun
from jobs.errors import BadSetting
from jobs.variants import AXES
from orchestrator.formatting import format_quantity
from orchestrator.tables import TextTable
from orchestrator.views.pivots import PIVOTS
from orchestrator.workloads import WORKLOAD_SIGNS, workload_in

#: What runs can be grouped by, beside metric and workload, by which they always are.
NAMES = ("model", "variant", "target")
GROUPS = (*NAMES, *(name for name in AXES if name not in PIVOTS), *PIVOTS)
SUMS = ("runs", "median", "lowest", "highest", "newest")


def parse(text: str) -> tuple[str, ...]:
    """Parse `variant,node`; raise BadSetting."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in GROUPS:
            raise BadSetting("--group", f"unknown column {name!r}: choose from {', '.join(GROUPS)}")
    return names


def group_runs(runs: Iterable[MeasuredRun], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row for each group, metric and workload, in the order of their names."""
    groups: dict[tuple[Any, ...], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.is_good:
            groups[(*(_value(run, name) for name in names), run.metric, run.workload)].append(run)
    return [_row(dict(zip(names, key, strict=False)), group) for key, group in sorted(groups.items(), key=_order)]


def csv_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of `group_runs`."""
    return (*names, "metric", *WORKLOAD_SIGNS, "unit", *SUMS)


def _value(run: MeasuredRun, name: str) -> Any:
    if name in NAMES:
        return getattr(run, name)
    return PIVOTS[name](run) if name in PIVOTS else run.axes[name]


def _order(item: tuple[tuple[Any, ...], object]) -> tuple[Any, ...]:
    *values, metric, workload = item[0]
    return *values, metric, workload


def _row(group: Mapping[str, Any], runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    medians, sizes = [run.median for run in runs], dict(runs[0].workload)
    return {
        **group,
        "metric": runs[0].metric,
        **{name: sizes.get(name) for name in WORKLOAD_SIGNS},
        "unit": runs[0].unit,
        "runs": len(runs),
        "median": median(medians),
        "lowest": min(medians),
        "highest": max(medians),
        "newest": max(run.at for run in runs).isoformat(),
    }


def to_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> TextTable:
    """Return the table for people."""
    head = (*names, "metric", "workload")
    lines = [
        (
            *(str(row[name]) for name in (*names, "metric")),
            workload_in(row),
            str(row["runs"]),
            *(format_quantity(row[name], row["unit"]) for name in ("median", "lowest", "highest")),
            datetime.fromisoformat(row["newest"]).astimezone().strftime("%Y-%m-%d %H:%M"),
        )
        for row in rows
    ]
    return TextTable((*head, *SUMS), lines, right=("runs", "median", "lowest", "highest"))
