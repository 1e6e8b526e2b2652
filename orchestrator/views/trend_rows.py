"""Trends as tables for people and rows for programs."""

from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.analysis.trends import LevelChange, TrendSeries
from orchestrator.formatting import format_quantity
from orchestrator.tables import TextTable
from orchestrator.times import format_time
from orchestrator.workloads import WORKLOAD_SIGNS, workload_in

COLUMNS = ("variant", "target", "workload", "on", "runs", "first level", "level now", "noise", "changes")
RIGHT = ("runs", "first level", "level now", "noise", "changes")
CHANGE_COLUMNS = ("when", "variant", "workload", "on", "was", "became", "by", "", "suspected")
CHANGE_RIGHT = ("was", "became", "by")
CSV_COLUMNS = (
    "variant", "target", "metric", "unit", "batch", "prompt_tokens", "new_tokens", "place", "job", "attempt", "when",
    "median", "level", "digest", "driver",
)  # fmt: skip


def about(series: TrendSeries) -> dict[str, Any]:
    """Return the columns that identify a series."""
    first = series.first
    sizes = dict(first.workload)
    return {
        "variant": first.variant,
        "target": first.target,
        "metric": first.metric,
        "unit": first.unit,
        **{name: sizes.get(name) for name in WORKLOAD_SIGNS},
        "place": first.place,
    }


def to_json(series: TrendSeries) -> dict[str, Any]:
    """Return all of a series for programs."""
    return {
        **about(series),
        "noise": series.noise and series.noise.sigma,
        "runs": [
            {"when": run.at.isoformat(), "median": run.median, "job": run.job, "attempt": run.attempt}
            for run in series.runs
        ],
        "changes": [
            {
                "when": change.at.isoformat(),
                "attempt": series.runs[change.index].attempt,
                "old": change.old,
                "new": change.new,
                "ratio": change.ratio,
                "p": change.p_value,
                "verdict": change.verdict.value,
                "suspects": list(change.suspects),
            }
            for change in series.changes
        ],
    }


def csv_rows(series: TrendSeries) -> Iterator[dict[str, Any]]:
    """Yield a row for each run."""
    for begin, end, level in series.levels:
        for run in series.runs[begin:end]:
            yield {
                **about(series),
                "job": run.job,
                "attempt": run.attempt,
                "when": run.at.isoformat(),
                "median": run.median,
                "level": level,
                "digest": run.digest,
                "driver": run.driver,
            }


def to_table(all_series: Iterable[TrendSeries]) -> TextTable:
    """Return the table of series."""
    return TextTable(COLUMNS, [_line(series) for series in all_series], RIGHT)


def _line(series: TrendSeries) -> tuple[str, ...]:
    columns, levels = about(series), series.levels
    return (
        columns["variant"],
        columns["target"],
        workload_in(columns),
        columns["place"],
        str(len(series.runs)),
        format_quantity(levels[0][2], columns["unit"]),
        format_quantity(levels[-1][2], columns["unit"]),
        f"{series.noise.sigma:.1%}" if series.noise else "",
        str(len(series.changes) or ""),
    )


def changes_table(all_series: Iterable[TrendSeries]) -> TextTable:
    """Return the table of the series' changes."""
    lines = [_change_line(series, change) for series in all_series for change in series.changes]
    return TextTable(CHANGE_COLUMNS, lines, CHANGE_RIGHT)


def _change_line(series: TrendSeries, change: LevelChange) -> tuple[str, ...]:
    columns = about(series)
    return (
        format_time(change.at.isoformat()),
        columns["variant"],
        workload_in(columns),
        columns["place"],
        format_quantity(change.old, columns["unit"]),
        format_quantity(change.new, columns["unit"]),
        change.percent_text,
        change.verdict.value,
        "; ".join(change.suspects),
    )
