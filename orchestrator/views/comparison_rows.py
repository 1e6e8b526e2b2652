"""Comparisons as tables for people and rows for programs: those of `compare` and of `verify`."""

from collections.abc import Iterable
from typing import Any

from orchestrator.analysis.comparisons import Comparison
from orchestrator.formatting import format_quantity
from orchestrator.tables import TextTable
from orchestrator.workloads import WORKLOAD_SIGNS, workload_text

COLUMNS = ("variant", "target", "metric", "workload", "on", "A", "B", "B/A", "interval", "runs", "B is", "")
CSV_COLUMNS = (
    "old_variant", "new_variant", "target", "metric", "unit", "batch", "prompt_tokens", "new_tokens", "places", "old",
    "new", "old_runs", "new_runs", "ratio", "low", "high", "verdict", "more_runs", "why", "conditions",
)  # fmt: skip
VERIFY_COLUMNS = ("metric", "workload", "old", "new", "ratio", "interval", "noise", "")


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return what `compare` tells programs."""
    sizes, interval = dict(comparison.workload), comparison.interval
    return {
        "old_variant": comparison.old_variant,
        "new_variant": comparison.new_variant,
        "target": comparison.target,
        "metric": comparison.metric,
        "unit": comparison.unit,
        **{name: sizes.get(name) for name in WORKLOAD_SIGNS},
        "places": list(comparison.places),
        "old": comparison.old,
        "new": comparison.new,
        "old_runs": comparison.old_runs,
        "new_runs": comparison.new_runs,
        "ratio": comparison.ratio,
        "low": interval and interval[0],
        "high": interval and interval[1],
        "noise": comparison.estimate and comparison.estimate.sigma,
        "verdict": comparison.verdict.value,
        "more_runs": comparison.more_runs,
        "why": comparison.reason,
        "conditions": list(comparison.conditions),
    }


def to_table(comparisons: Iterable[Comparison]) -> TextTable:
    """Return `compare`'s table."""
    return TextTable(COLUMNS, [_line(comparison) for comparison in comparisons], right=("A", "B", "B/A", "runs"))


def _line(comparison: Comparison) -> tuple[str, ...]:
    places = comparison.places
    return (
        " / ".join(dict.fromkeys((comparison.old_variant, comparison.new_variant))),
        comparison.target,
        comparison.metric,
        workload_text(comparison.workload),
        places[0] if len(places) == 1 else f"{len(places)} devices" if places else "",
        _quantity(comparison.old, comparison.unit),
        _quantity(comparison.new, comparison.unit),
        "" if comparison.ratio is None else f"{comparison.ratio:.3f}",
        _interval(comparison),
        f"{comparison.old_runs}, {comparison.new_runs}",
        comparison.verdict,
        "; ".join(filter(None, (comparison.reason, _under(comparison)))),
    )


def _under(comparison: Comparison) -> str:
    """Name the environment variables that differ: they may be why the numbers do."""
    return f"measured under {', '.join(comparison.conditions)}" if comparison.conditions else ""


def verify_to_json(comparison: Comparison) -> dict[str, Any]:
    """Return what `verify` tells programs."""
    sizes, estimate = dict(comparison.workload), comparison.estimate
    return {
        "metric": comparison.metric,
        "unit": comparison.unit,
        **{name: sizes.get(name) for name in ("batch", "prompt_tokens", "evaluation")},
        "old": comparison.old,
        "new": comparison.new,
        "ratio": estimate and estimate.ratio,
        "interval": estimate and list(estimate.interval),
        "noise": comparison.tolerance,
        "finding": comparison.verdict.value,
    }


def verify_table(comparisons: Iterable[Comparison]) -> TextTable:
    """Return `verify`'s table."""
    right = ("old", "new", "ratio", "noise")
    return TextTable(VERIFY_COLUMNS, [_verify_line(comparison) for comparison in comparisons], right)


def _verify_line(comparison: Comparison) -> tuple[str, ...]:
    estimate = comparison.estimate
    return (
        comparison.metric,
        workload_text(comparison.workload),
        _quantity(comparison.old, comparison.unit),
        _quantity(comparison.new, comparison.unit),
        f"{estimate.ratio:.3f}" if estimate else "",
        _interval(comparison),
        "" if comparison.tolerance is None else f"{comparison.tolerance:.0%}",
        comparison.verdict,
    )


def _quantity(value: float | None, unit: str) -> str:
    return "" if value is None else format_quantity(value, unit)


def _interval(comparison: Comparison) -> str:
    return "{:.3f} to {:.3f}".format(*comparison.interval) if comparison.interval else ""
