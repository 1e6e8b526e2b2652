"""Runs summed up by what people ask for. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from db.runs import Run
from jobs.errors import BadSetting
from jobs.variants import AXES
from orchestrator.output import quantity
from orchestrator.showing.forms import Shown
from orchestrator.showing.pivoting import PIVOTS
from orchestrator.showing.workloads import WORKLOAD_SIGNS, workload_in

#: What runs can be grouped by beside the columns of a pivot: metric and workload always are.
NAMES = ("model", "variant", "target")
GROUPS = (*NAMES, *(name for name in AXES if name not in PIVOTS), *PIVOTS)
SUMS = ("runs", "median", "lowest", "highest", "newest")


def parse(text: str) -> tuple[str, ...]:
    """`variant,node`; raises BadSetting."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in GROUPS:
            raise BadSetting("--group", f"there is no {name!r}; choose of {', '.join(GROUPS)}")
    return names


def grouped(runs: Iterable[Run], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each group, metric and workload, in the order of their names."""
    found: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if run.is_good:
            found[(*(_value(run, name) for name in names), run.metric, run.workload)].append(run)
    return [_row(dict(zip(names, key, strict=False)), ones) for key, ones in sorted(found.items(), key=_order)]


def columns(names: Sequence[str]) -> tuple[str, ...]:
    """Of `grouped`."""
    return (*names, "metric", *WORKLOAD_SIGNS, "unit", *SUMS)


def _value(run: Run, name: str) -> Any:
    if name in NAMES:
        return getattr(run, name)
    return PIVOTS[name](run) if name in PIVOTS else run.axes[name]


def _order(found: tuple[tuple[Any, ...], object]) -> tuple[Any, ...]:
    *values, metric, workload = found[0]
    return *values, metric, tuple(size for _, size in workload)


def _row(group: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
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


def shown(found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Shown:
    """For people."""
    head = (*names, "metric", "workload")
    lines = [
        (
            *(str(row[name]) for name in (*names, "metric")),
            workload_in(row),
            str(row["runs"]),
            *(quantity(row[name], row["unit"]) for name in ("median", "lowest", "highest")),
            datetime.fromisoformat(row["newest"]).astimezone().strftime("%Y-%m-%d %H:%M"),
        )
        for row in found
    ]
    return Shown((*head, *SUMS), lines, right=("runs", "median", "lowest", "highest"))
