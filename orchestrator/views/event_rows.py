"""Events as rows for people and programs."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from db.reads.events import EventRow
from orchestrator.tables import TextTable
from orchestrator.times import format_second

COLUMNS = tuple(field.name for field in fields(EventRow))


def to_json(row: EventRow) -> dict[str, Any]:
    """Return an event for programs."""
    return {**vars(row), "at": row.at.isoformat()}


def build_table(events: Sequence[EventRow]) -> TextTable:
    """Return a table of events for people."""
    return TextTable(("at", "task", "stage", "for", "change", "node", "by", ""), [_cells(event) for event in events])


def _cells(event: EventRow) -> tuple[str, ...]:
    failure = f"{event.failure_kind}: {event.failure_message}" if event.failure_kind else ""
    parts = (failure, "" if event.detail in failure else event.detail)
    return (
        format_second(event.at),
        event.task or event.job or "",
        event.stage or "",
        event.subject,
        event.change,
        event.node or "",
        event.actor or "",
        "; ".join(filter(None, parts)),
    )
