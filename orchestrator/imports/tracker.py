"""A tracker's page: stages with PASS and FAIL, and (TTFT, ITL) by date; in Markdown, or one such table in CSV. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from db.imports import FoundCell
from jobs.errors import FileError
from jobs.hashing import digest_of
from jobs.state import Failure, FailureKind
from jobs.task import Measurement
from jobs.variants import Variant
from orchestrator.imports.found import FoundFile, Workload, content_of
from orchestrator.imports.names import variant_called
from orchestrator.showing.markdown_tables import Cell, MarkdownTable, table_of_csv, tables_of
from orchestrator.showing.tracker_cells import latencies

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
class Asked:
    """What the page does not say."""

    target: str
    tp: int  #: of variants whose names don't say
    at: datetime | None  #: of what has no date
    workload: Workload


def read(path: Path, asked: Asked) -> FoundFile:
    """The cells of every table that is one of results; raises FileError, which names the line."""
    try:
        text = content_of(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(str(path), None, "", "is not text") from error
    tables = [table_of_csv(str(path), text)] if path.suffix.lower() == ".csv" else list(tables_of(text))
    cells: list[FoundCell] = []
    left_out: list[str] = []
    for table in tables:
        rows, others = _rows(table, asked)
        if rows:
            left_out += others
            for line, (model, variant), row in rows:
                for column, cell in zip(table.columns[1:], row, strict=True):
                    try:
                        cells += _cells(asked, model, variant, line, column, cell)
                    except LookupError as error:
                        left_out.append(f"line {line}: {column}: {error.args[0]}")
                    except ValueError as error:
                        raise FileError(str(path), line, column, str(error)) from error
    _expect_each_once(path, cells)
    if not cells:
        raise FileError(str(path), None, "", "has no table of variants with verdicts or times in it")
    return FoundFile(tuple(cells), tuple(left_out))


def _expect_each_once(path: Path, cells: Sequence[FoundCell]) -> None:
    told: dict[tuple[str, str, str, datetime], int | None] = {}
    for cell in cells:
        place = (cell.variant.name, cell.variant.target, cell.stage, cell.at)
        if place in told:
            message = f"tells of {cell.stage} of {cell.variant.name} again, after line {told[place]}"
            raise FileError(str(path), cell.line, "", message)
        told[place] = cell.line


Rows = list[tuple[int, tuple[str, Variant], Sequence[Cell]]]


def _rows(table: MarkdownTable, asked: Asked) -> tuple[Rows, list[str]]:
    """The rows that are variants', and what the others are; none where the table is about something else."""
    known = [column for column in table.columns[1:] if column.lower() in STAGES or date_of(column)]
    rows: Rows = []
    others = []
    for line, cells in table.rows if known else ():
        try:
            rows.append((line, variant_called(cells[0].text, asked.target, asked.tp), cells[1:]))
        except ValueError as error:
            others.append(f"line {line}: {error}")
    return rows, others


def date_of(column: str) -> datetime | None:
    """What day a column is about, as it began here."""
    for form in DATES:
        try:
            return datetime.strptime(column, form).astimezone()
        except ValueError:
            continue
    return None


def _cells(asked: Asked, model: str, variant: Variant, line: int, column: str, cell: Cell) -> Iterator[FoundCell]:
    """None or one. Raises ValueError for what should be another way, LookupError for what haloctl has no place for."""
    day = date_of(column)
    if day is not None:
        if times := latencies(cell.beside_links):
            context = asked.workload.over({})
            measurements = tuple(Measurement(metric, (value,), context) for metric, value in times.items())
            yield _cell(model, variant, "benchmark", day, line, cell, measurements=measurements)
        return
    if not cell.text or column.lower().startswith(OTHER_COLUMNS):
        return
    if column.lower() not in STAGES:
        raise LookupError(f"haloctl has no such stage, {cell.text!r} is left out")
    if asked.at is None:
        raise ValueError("has no date: give --date, the day of the page's verdicts")
    stage = STAGES[column.lower()]
    verdict = VERDICT.match(cell.text)
    if verdict is None:
        raise LookupError(f"{cell.text!r} is neither PASS nor FAIL, and is left out")
    failure = _failure(stage, cell) if verdict[1].upper() == "FAIL" else None
    yield _cell(model, variant, stage, asked.at, line, cell, failure=failure)


def _cell(
    model: str,
    variant: Variant,
    stage: str,
    at: datetime,
    line: int,
    cell: Cell,
    failure: Failure | None = None,
    measurements: tuple[Measurement, ...] = (),
) -> FoundCell:
    day = at.astimezone().date().isoformat()  # the same wherever it is read
    identity = [variant.name, variant.target, stage, day, cell.text, [list(link) for link in cell.links]]
    return FoundCell(model, variant, stage, at, digest_of(identity), failure, measurements, cell.links, line)


def _failure(stage: str, cell: Cell) -> Failure:
    kind = FailureKind.WRONG_NUMBERS if stage == "numerics" else FailureKind.TOOL_FAILED
    kind = FailureKind.OUT_OF_MEMORY if MEMORY.search(cell.text) else kind
    said = VERDICT.sub("", cell.text, count=1).strip() if cell.text.upper().startswith("FAIL ") else ""
    return Failure(kind, said or cell.text, "\n".join(f"{name}: {address}" for name, address in cell.links))
