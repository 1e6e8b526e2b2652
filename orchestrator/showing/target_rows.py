"""Quoted targets as people and programs are shown them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from db.targets import QuotedTarget
from orchestrator.output import quantity
from orchestrator.showing.rows import when

COLUMNS = ("variant", "target", "metric", "value", "batch", "prompt", "new", "source", "since", "by")
RIGHT = ("value", "batch", "prompt", "new")
CSV_COLUMNS = (
    "variant", "target", "metric", "value", "unit", "batch", "prompt_tokens", "new_tokens", "source", "recorded_by",
    "since",
)  # fmt: skip


def as_json(found: QuotedTarget) -> dict[str, Any]:
    """All of it; `targets import` reads it again."""
    return {**asdict(found), "since": found.since.isoformat()}


def line(found: Mapping[str, Any]) -> tuple[str, ...]:
    """One of them in a table; what is open is empty."""
    return (
        found["variant"],
        found["target"],
        found["metric"],
        quantity(found["value"], found["unit"]),
        *("" if found[name] is None else str(found[name]) for name in ("batch", "prompt_tokens", "new_tokens")),
        found["source"],
        when(found["since"]),
        found["recorded_by"],
    )
