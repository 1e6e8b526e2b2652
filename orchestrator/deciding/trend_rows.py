"""Trends as rows that people and programs read."""

from collections.abc import Iterator
from typing import Any

from orchestrator.deciding.trends import Series
from orchestrator.output import quantity
from orchestrator.showing.rows import when
from orchestrator.showing.workloads import workload_in

COLUMNS = ("variant", "target", "workload", "on", "runs", "first level", "level now", "noise", "changes")
RIGHT = ("runs", "first level", "level now", "noise", "changes")
CHANGE_COLUMNS = ("when", "variant", "workload", "on", "was", "became", "by", "", "suspected")
CHANGE_RIGHT = ("was", "became", "by")
CSV_COLUMNS = (
    "variant", "target", "metric", "unit", "batch", "prompt_tokens", "new_tokens", "place", "job", "attempt", "when",
    "median", "level", "digest", "driver",
)  # fmt: skip


def about(series: Series) -> dict[str, Any]:
    """What a series is of."""
    first = series.first
    sizes = dict(first.workload)
    return {
        "variant": first.variant,
        "target": first.target,
        "metric": first.metric,
        "unit": first.unit,
        **{name: sizes.get(name) for name in ("batch", "prompt_tokens", "new_tokens")},
        "place": first.place,
    }


def as_json(series: Series) -> dict[str, Any]:
    """All of it."""
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
                "p": change.p,
                "verdict": change.verdict.value,
                "suspects": list(change.suspects),
            }
            for change in series.changes
        ],
    }


def csv_rows(series: Series) -> Iterator[dict[str, Any]]:
    """A row for each run."""
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


def line(series: Series) -> tuple[str, ...]:
    """A series in a table."""
    told, levels = about(series), series.levels
    return (
        told["variant"],
        told["target"],
        workload_in(told),
        told["place"],
        str(len(series.runs)),
        quantity(levels[0][2], told["unit"]),
        quantity(levels[-1][2], told["unit"]),
        f"{series.noise.sigma:.1%}" if series.noise else "",
        str(len(series.changes) or ""),
    )


def change_lines(series: Series) -> Iterator[tuple[str, ...]]:
    """Its changes in a table."""
    told = about(series)
    for change in series.changes:
        yield (
            when(change.at.isoformat()),
            told["variant"],
            workload_in(told),
            told["place"],
            quantity(change.old, told["unit"]),
            quantity(change.new, told["unit"]),
            change.in_words,
            change.verdict.value,
            "; ".join(change.suspects),
        )
