"""Periods of attempts, as people read them."""

from datetime import datetime

from orchestrator.formatting import format_duration
from orchestrator.times import format_second


def format_period(start: datetime, end: datetime | None, duration_s: float | None) -> str:
    """Return `2026-11-20 08:00:03 to 08:00:12 (9.1 s)`; without an end `since 2026-11-20 08:00:03`."""
    if end is None:
        return f"since {format_second(start)}"
    is_same_day = start.astimezone().date() == end.astimezone().date()
    shown_end = format_second(end)[11:] if is_same_day else format_second(end)
    duration = "" if duration_s is None else f" ({format_duration(duration_s)})"
    return f"{format_second(start)} to {shown_end}{duration}"
