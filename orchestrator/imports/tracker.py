"""Imports a tracker's page: PASS and FAIL by stage, (TTFT, ITL) by date; in Markdown, or one table in CSV."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from db.writes.imports import ImportedCell
from jobs.engines import ENGINES
from jobs.errors import FileError
from jobs.hashing import digest_of
from jobs.state import Failure, FailureKind
from jobs.task import Measurement
from jobs.variants import Variant
from orchestrator.imports.imported_file import ImportedFile, KnownWorkload, read_text
from orchestrator.imports.markdown_tables import (
    MAX_PAGE_BYTES,
    MarkdownTable,
    TableCell,
    parse_csv_table,
    parse_markdown_tables,
)
from orchestrator.imports.tracker_cells import parse_latencies
from orchestrator.imports.variant_names import parse_variant_name

#: Columns by their heads, in lower case.
STAGES = {
    "generate mlir": "export",
    "compile to vmfb": "compile",
    "iree invocation": "invoke",
    "iree numeric": "numerics",
}
OTHER_COLUMNS = ("item", "target")
DATES = ("%m/%d/%y", "%m/%d/%Y", "%Y-%m-%d")
VERDICT = re.compile(r"(PASS|FAIL)(?:ED|S)?\b", re.IGNORECASE)
MEMORY = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class TrackerDefaults:
    """What the command line says that the page does not."""

    target: str
    tp: int  #: of variants whose names don't have it
    at: datetime | None  #: of cells without a date
    workload: KnownWorkload


def read(path: Path, defaults: TrackerDefaults) -> ImportedFile:
    """Read the cells of every table of results; raises FileError with the line."""
    text = read_text(path, MAX_PAGE_BYTES)
    tables = (
        [parse_csv_table(str(path), text)]
        if path.suffix.lower() == ".csv"
        else list(parse_markdown_tables(str(path), text))
    )
    cells: list[ImportedCell] = []
    skipped: list[str] = []
    for table in tables:
        rows, messages = _rows(table, defaults)
        if rows:
            skipped += messages
            for line, (model, variant), row in rows:
                for column, cell in zip(table.columns[1:], row, strict=True):
                    try:
                        cells += _cells(defaults, model, variant, line, column, cell)
                    except LookupError as error:
                        skipped.append(f"line {line}: {column}: {error.args[0]}")
                    except ValueError as error:
                        raise FileError(str(path), line, column, str(error)) from error
    _expect_each_once(path, cells)
    if not cells:
        raise FileError(str(path), None, "", "has no table of variants with verdicts or times in it")
    return ImportedFile(tuple(cells), tuple(skipped))


def _expect_each_once(path: Path, cells: Sequence[ImportedCell]) -> None:
    lines: dict[tuple[str, str, str, datetime], int | None] = {}
    for cell in cells:
        place = (cell.variant.name, cell.variant.target, cell.stage, cell.at)
        if place in lines:
            message = f"has {cell.stage} of {cell.variant.name} again, after line {lines[place]}"
            raise FileError(str(path), cell.line, "", message)
        lines[place] = cell.line


Rows = list[tuple[int, tuple[str, Variant], Sequence[TableCell]]]


def _rows(table: MarkdownTable, defaults: TrackerDefaults) -> tuple[Rows, list[str]]:
    """Return the rows of variants, and a message for each other row; none of a table that has no column of results."""
    known = [column for column in table.columns[1:] if column.lower() in STAGES or date_of(column)]
    rows: Rows = []
    messages = []
    for line, cells in table.rows if known else ():
        try:
            rows.append((line, parse_variant_name(cells[0].text, defaults.target, defaults.tp), cells[1:]))
        except ValueError as error:
            messages.append(f"line {line}: {error}")
    return rows, messages


def date_of(column: str) -> datetime | None:
    """Return the start of the day, in local time, that heads a column; None for another column."""
    for form in DATES:
        try:
            return datetime.strptime(column, form).astimezone()
        except (ValueError, OverflowError):
            continue
    return None


def _cells(
    defaults: TrackerDefaults, model: str, variant: Variant, line: int, column: str, cell: TableCell
) -> Iterator[ImportedCell]:
    """Yield a table cell's result, if it has one.

    Raises ValueError for a malformed cell, LookupError for one that haloctl has no place for.
    """
    day = date_of(column)
    if day is not None:
        if times := parse_latencies(cell.text_outside_links):
            context = defaults.workload.as_context({})
            measurements = tuple(Measurement(metric, (value,), context) for metric, value in times.items())
            yield _cell(model, variant, "benchmark", day, line, cell, measurements=measurements)
        return
    if not cell.text or column.lower().startswith(OTHER_COLUMNS):
        return
    if column.lower() not in STAGES:
        raise LookupError(f"skipped {cell.text!r}: haloctl has no such stage")
    if defaults.at is None:
        raise ValueError("has no date; give --date, the day of the page's verdicts")
    stage = STAGES[column.lower()]
    if stage not in ENGINES[variant.engine].stages:
        raise LookupError(f"skipped {cell.text!r}: the engine {variant.engine} has no stage {stage}")
    match = VERDICT.match(cell.text)
    if match is None:
        raise LookupError(f"skipped {cell.text!r}: it is neither PASS nor FAIL")
    failure = _failure(stage, cell) if match[1].upper() == "FAIL" else None
    yield _cell(model, variant, stage, defaults.at, line, cell, failure=failure)


def _cell(
    model: str,
    variant: Variant,
    stage: str,
    at: datetime,
    line: int,
    cell: TableCell,
    failure: Failure | None = None,
    measurements: tuple[Measurement, ...] = (),
) -> ImportedCell:
    day = at.astimezone().date().isoformat()  # the same wherever it is read
    identity = [variant.name, variant.target, stage, day, cell.text, [list(link) for link in cell.links]]
    return ImportedCell(model, variant, stage, at, digest_of(identity), failure, measurements, cell.links, line)


def _failure(stage: str, cell: TableCell) -> Failure:
    kind = FailureKind.WRONG_NUMBERS if stage == "numerics" else FailureKind.TOOL_FAILED
    kind = FailureKind.OUT_OF_MEMORY if MEMORY.search(cell.text) else kind
    message = VERDICT.sub("", cell.text, count=1).strip() if cell.text.upper().startswith("FAIL ") else ""
    return Failure(kind, message or cell.text, "\n".join(f"{name}: {address}" for name, address in cell.links))
