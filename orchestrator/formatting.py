"""Numbers with their units, as people read them."""

from jobs.number_format import format_number


def format_count(count: int, noun: str) -> str:
    """Return `1 task`, `27 tasks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_duration(duration_s: float | None) -> str:
    """Return `0.8 s`, `12 s`, `3 min 20 s` or `2 h 5 min`; an empty text for None."""
    if duration_s is None:
        return ""
    if duration_s < 10:
        return f"{duration_s:.1f} s"
    if duration_s < 120:
        return f"{duration_s:.0f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    return f"{minutes} min {seconds} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def format_bytes(size_bytes: float) -> str:
    """Return a size with a binary unit: `2.1 MiB`."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size_bytes /= 1024
        if size_bytes < 1024:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} TiB"


def format_quantity(value: float, unit: str) -> str:
    """Return a value with its unit, where `1` is the unit of a ratio."""
    return format_bytes(value) if unit == "bytes" else f"{format_number(value)} {unit if unit != '1' else ''}".rstrip()
