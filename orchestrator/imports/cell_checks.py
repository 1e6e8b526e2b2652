"""Checks of what was read from a file, before any of it is stored. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path

from db.writes.imports import ImportedCell
from jobs.errors import FileError
from jobs.plain_text import has_hidden

MAX_CELLS = 10_000
MAX_NAME = 200  #: characters
MAX_SAMPLES = 100_000  #: of one measurement
MAX_VALUE = 1e15  #: of a sample: milliseconds of 30,000 years
EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
MAX_CLOCK_SKEW = timedelta(days=1)  #: some files contain local times without a zone


def expect_storable(path: Path, cells: Sequence[ImportedCell], now: datetime) -> None:
    """Raise FileError, with the line, for cells that no database should store."""
    if len(cells) > MAX_CELLS:
        raise FileError(
            str(path), None, "", f"has {len(cells)} results, and {MAX_CELLS} at most are imported: split it"
        )
    for cell in cells:
        problem = _problem(cell, now)
        if problem:
            raise FileError(str(path), cell.line, "", problem)


def _problem(cell: ImportedCell, now: datetime) -> str:
    """Return what is wrong with a cell; empty: nothing."""
    if cell.at > now + MAX_CLOCK_SKEW:
        return f"{cell.at.astimezone():%Y-%m-%d %H:%M} is in the future"
    if cell.at < EARLIEST:
        return f"has a date in the year {cell.at.year}"
    if len(cell.variant.name) > MAX_NAME or has_hidden(cell.variant.name):
        return f"has a variant's name that is too long, or has characters that can't be seen: {cell.variant.name[:40]}"
    for measurement in cell.measurements:
        if len(measurement.samples) > MAX_SAMPLES:
            return f"has more than {MAX_SAMPLES} samples of {measurement.metric}"
        if not all(isfinite(sample) and 0 <= sample <= MAX_VALUE for sample in measurement.samples):
            return f"has a value of {measurement.metric} that is negative or too large"
    return ""
