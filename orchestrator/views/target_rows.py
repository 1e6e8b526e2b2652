"""Quoted targets as JSON objects and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from db.writes.targets import QuotedTarget
from orchestrator.formatting import format_quantity
from orchestrator.tables import TextTable
from orchestrator.times import format_time

CSV_COLUMNS = (
    "variant", "target", "metric", "value", "unit", "batch", "prompt_tokens", "new_tokens", "source", "recorded_by",
    "since",
)  # fmt: skip


def to_json(target: QuotedTarget) -> dict[str, Any]:
    """Return a target, as `targets import` reads it."""
    return {**asdict(target), "since": target.since.isoformat()}


def build_table(targets: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return a table of targets in JSON, where an empty cell matches any value."""
    columns = ("variant", "target", "metric", "value", "batch", "prompt", "new", "source", "since", "by")
    rows = [
        (
            *(target["variant"], target["target"], target["metric"]),
            format_quantity(target["value"], target["unit"]),
            *("" if target[name] is None else str(target[name]) for name in ("batch", "prompt_tokens", "new_tokens")),
            *(target["source"], format_time(target["since"]), target["recorded_by"]),
        )
        for target in targets
    ]
    return TextTable(columns, rows, right=("value", "batch", "prompt", "new"))
