"""Files that quoted targets are imported from: CSV, JSON, and pages in Markdown. Pure but for reading them."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError, field_validator

from db.targets import QuotedTarget
from jobs.errors import FileError
from jobs.metrics import METRICS
from jobs.targets import TARGETS
from orchestrator.imports.names import variant_called
from orchestrator.showing.markdown_tables import Cell, MarkdownTable, tables_of
from orchestrator.showing.tracker_cells import latencies
from orchestrator.submitting.job_file import after_a_colon

ANY_TARGET = "cpu"  #: a name does not depend on it
NAMED = frozenset({"variant", "metric", "value"})  #: columns of a table that is one of targets

Found = tuple[int | None, Mapping[str, Any]]  #: a line, and what a target is made of


class TargetRow(BaseModel):
    """One target as a file or a command line gives it."""

    model_config = ConfigDict(extra="forbid")

    variant: str
    metric: str
    value: FiniteFloat
    source: str
    target: str = ""
    unit: str = ""
    batch: PositiveInt | None = None
    prompt_tokens: PositiveInt | None = None
    new_tokens: PositiveInt | None = None
    recorded_by: str = ""
    since: datetime | None = None

    @field_validator("variant", "source")
    @classmethod
    def _said(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("should not be empty")
        return text.strip()

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, name: str) -> str:
        if name not in METRICS:
            raise ValueError(f"no metric is called {name!r}: there are {', '.join(METRICS)}")
        return name

    @field_validator("target")
    @classmethod
    def _known_target(cls, name: str) -> str:
        if name and name not in TARGETS:
            raise ValueError(f"no target is called {name!r}: there are {', '.join(TARGETS)}")
        return name

    def quoted(self, recorded_by: str, now: datetime) -> QuotedTarget:
        """It, complete; raises ValueError where it is not in its metric's unit."""
        unit = METRICS[self.metric].unit
        if self.unit not in ("", unit):
            raise ValueError(f"{self.metric} is in {unit}, not {self.unit}")
        return QuotedTarget(
            variant=self.variant,
            target=self.target,
            metric=self.metric,
            batch=self.batch,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            value=self.value,
            unit=unit,
            source=self.source,
            recorded_by=self.recorded_by or recorded_by,
            since=self.since.astimezone(UTC) if self.since else now,
        )


def read(path: Path, defaults: Mapping[str, Any], recorded_by: str, now: datetime, tp: int = 1) -> list[QuotedTarget]:
    """The targets of a file; `defaults` are for what its rows leave open. Raises FileError, which names the line.

    `tp` is of the variants of a tracker's page whose names don't say it. Where `defaults` name no source, such a page
    itself is the source.
    """
    page = partial(_markdown, tp=tp, origin=defaults.get("source", path.name))
    readers: dict[str, Callable[[Path, str], Iterator[Found]]] = {
        ".csv": _csv,
        ".json": _json,
        ".md": page,
        ".txt": page,
    }
    if path.suffix.lower() not in readers:
        raise FileError(str(path), None, "", f"should end in {', '.join(readers)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(readers[path.suffix.lower()](path, text))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(str(path), None, "", f"can't be read: {error}") from error
    if not rows:
        raise FileError(str(path), None, "", "holds no target: see `haloctl targets import --help`")
    return [
        _target(path, line, row, defaults, recorded_by, now, "" if line else f"[{index}].")
        for index, (line, row) in enumerate(rows)
    ]


def _target(
    path: Path,
    line: int | None,
    row: Mapping[str, Any],
    defaults: Mapping[str, Any],
    recorded_by: str,
    now: datetime,
    place: str,
) -> QuotedTarget:
    """`place` says which row it is where no line does."""
    given = {name: value for name, value in row.items() if value not in (None, "")}
    try:
        return TargetRow.model_validate({**defaults, **given}).quoted(recorded_by, now)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise FileError(str(path), line, place + key, in_words(first["type"], key, first["msg"])) from error
    except ValueError as error:
        raise FileError(str(path), line, f"{place}unit", str(error)) from error


def in_words(kind: str, key: str, message: str) -> str:
    """What is wrong with a key of a row."""
    if kind == "missing":
        return "is missing; give --source for all" if key == "source" else "is missing"
    if kind == "extra_forbidden":
        return f"is no column here: there are {', '.join(TargetRow.model_fields)}"
    return after_a_colon(message)


def _csv(path: Path, text: str) -> Iterator[Found]:
    reader = csv.DictReader(text.splitlines(), restkey="(more)", strict=True)
    try:
        for row in reader:
            if "(more)" in row:
                raise FileError(str(path), reader.line_num, "", "has more cells than there are columns")
            yield reader.line_num, {(name or "").strip(): (value or "").strip() for name, value in row.items()}
    except csv.Error as error:
        raise FileError(str(path), reader.line_num, "", f"is not CSV: {error}") from error


def _json(path: Path, text: str) -> Iterator[Found]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(str(path), error.lineno, "", f"is not JSON: {error.msg}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError(str(path), None, "", "should be a list of objects, as `haloctl targets --json` prints them")
    yield from ((None, row) for row in rows)


def _markdown(path: Path, text: str, tp: int, origin: str) -> Iterator[Found]:
    for table in tables_of(text):
        if set(table.columns) >= NAMED:
            yield from _named_rows(table)
        elif quoted := [column for column in table.columns if column.lower().startswith("target")]:
            yield from _tracker_rows(path, table, quoted, tp, origin)


def _named_rows(table: MarkdownTable) -> Iterator[Found]:
    for line, cells in table.rows:
        yield line, {name: cell.text for name, cell in zip(table.columns, cells, strict=True)}


def _tracker_rows(path: Path, table: MarkdownTable, quoted: Iterable[str], tp: int, origin: str) -> Iterator[Found]:
    """`(200.2, 9.6)` in a column such as `Target(vLLM-PyTorch)`."""
    for line, cells in table.rows:
        for column in quoted:
            cell = cells[table.columns.index(column)]
            try:
                found = latencies(cell.beside_links)
            except ValueError as error:
                raise FileError(str(path), line, column, str(error)) from error
            said = {"variant": _variant(cells[0].text, tp), "source": _source(origin, column, cell)}
            yield from ((line, said | {"metric": metric, "value": value}) for metric, value in found.items())


def _variant(name: str, tp: int) -> str:
    """What haloctl calls it; a name that it would not make stays as it is."""
    try:
        return variant_called(name, ANY_TARGET, tp)[1].name
    except ValueError:
        return name


def _source(origin: str, column: str, cell: Cell) -> str:
    return " ".join((f"{column} in {origin}", *(address for _, address in cell.links)))
