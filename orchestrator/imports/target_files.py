"""Imports quoted targets from files: CSV, JSON, and pages in Markdown."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, PositiveInt, ValidationError, field_validator

from db.writes.targets import QuotedTarget
from jobs.errors import FileError
from jobs.metrics import METRICS
from jobs.targets import TARGETS
from orchestrator.imports.imported_file import MAX_WORKLOAD, parse_json, read_text
from orchestrator.imports.markdown_tables import MAX_PAGE_BYTES, MarkdownTable, parse_markdown_tables
from orchestrator.imports.tracker_cells import parse_latencies
from orchestrator.imports.variant_names import parse_variant_name
from orchestrator.yaml_document import as_clause

ANY_TARGET = "cpu"  #: a name does not depend on it
REQUIRED_COLUMNS = frozenset({"variant", "metric", "value"})  #: of a table of targets

Row = tuple[int | None, Mapping[str, Any]]  #: its line, and its fields of TargetRow


MAX_ROWS = 10_000

WorkloadSize = Annotated[PositiveInt, Field(le=MAX_WORKLOAD)]
Text = Annotated[str, Field(max_length=2000)]


class TargetRow(BaseModel):
    """One target as a file or the command line specifies it."""

    model_config = ConfigDict(extra="forbid")

    variant: Text
    metric: str
    value: FiniteFloat
    source: Text
    target: str = ""
    unit: str = ""
    batch: WorkloadSize | None = None
    prompt_tokens: WorkloadSize | None = None
    new_tokens: WorkloadSize | None = None
    recorded_by: Text = ""
    since: datetime | None = None

    @field_validator("variant", "source")
    @classmethod
    def _not_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("should not be empty")
        return text.strip()

    @field_validator("since")
    @classmethod
    def _has_sensible_year(cls, since: datetime | None) -> datetime | None:
        if since and not 1970 < since.year < 9000:
            raise ValueError(f"has the year {since.year}")
        return since

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

    def as_quoted_target(self, recorded_by: str, now: datetime) -> QuotedTarget:
        """Return the complete target; raises ValueError where it is not in its metric's unit."""
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
    """Read a file's targets; `defaults` are for fields that its rows lack. Raises FileError with the line.

    `tp` is for variants of a tracker's page whose names don't have it. If `defaults` have no source, such a page itself
    is the source.
    """
    read_page = partial(_markdown, tp=tp, origin=defaults.get("source", path.name))
    readers: dict[str, Callable[[Path, str], Iterator[Row]]] = {
        ".csv": _csv,
        ".json": _json,
        ".md": read_page,
        ".txt": read_page,
    }
    if path.suffix.lower() not in readers:
        raise FileError(str(path), None, "", f"should end in {', '.join(readers)}")
    rows = list(readers[path.suffix.lower()](path, read_text(path, MAX_PAGE_BYTES)))
    if len(rows) > MAX_ROWS:
        raise FileError(str(path), None, "", f"has {len(rows)} targets, and {MAX_ROWS} at most are imported: split it")
    if not rows:
        raise FileError(str(path), None, "", "has no target; see `haloctl targets import --help`")
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
    """Make the target of a row; `place` names the row in errors where there is no line."""
    filled = {name: value for name, value in row.items() if value not in (None, "")}
    try:
        return TargetRow.model_validate({**defaults, **filled}).as_quoted_target(recorded_by, now)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise FileError(str(path), line, place + key, describe_error(first["type"], key, first["msg"])) from error
    except ValueError as error:
        raise FileError(str(path), line, f"{place}unit", str(error)) from error


def describe_error(kind: str, key: str, message: str) -> str:
    """Return what pydantic found wrong with a key of a row, as the end of a sentence."""
    if kind == "missing":
        return "is missing; give --source for all rows" if key == "source" else "is missing"
    if kind == "extra_forbidden":
        return f"is an unknown column: there are {', '.join(TargetRow.model_fields)}"
    return as_clause(message)


def _csv(path: Path, text: str) -> Iterator[Row]:
    reader = csv.DictReader(text.splitlines(), restkey="(more)", strict=True)
    try:
        for row in reader:
            if "(more)" in row:
                raise FileError(str(path), reader.line_num, "", "has more cells than there are columns")
            yield reader.line_num, {(name or "").strip(): (value or "").strip() for name, value in row.items()}
    except csv.Error as error:
        raise FileError(str(path), reader.line_num, "", f"is not CSV: {error}") from error


def _json(path: Path, text: str) -> Iterator[Row]:
    rows = parse_json(path, text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError(str(path), None, "", "should be a list of objects, as `haloctl targets --json` prints them")
    yield from ((None, row) for row in rows)


def _markdown(path: Path, text: str, tp: int, origin: str) -> Iterator[Row]:
    for table in parse_markdown_tables(str(path), text):
        if set(table.columns) >= REQUIRED_COLUMNS:
            for line, cells in table.rows:
                yield line, {name: cell.text for name, cell in zip(table.columns, cells, strict=True)}
        elif columns := [column for column in table.columns if column.lower().startswith("target")]:
            yield from _tracker_rows(path, table, columns, tp, origin)


def _tracker_rows(path: Path, table: MarkdownTable, columns: Iterable[str], tp: int, origin: str) -> Iterator[Row]:
    """Read `(200.2, 9.6)` in columns such as `Target(vLLM-PyTorch)`."""
    for line, cells in table.rows:
        for column in columns:
            cell = cells[table.columns.index(column)]
            try:
                by_metric = parse_latencies(cell.text_outside_links)
            except ValueError as error:
                raise FileError(str(path), line, column, str(error)) from error
            source = " ".join((f"{column} in {origin}", *(address for _, address in cell.links)))
            for metric, value in by_metric.items():
                variant = _variant_name(cells[0].text, tp)
                yield line, {"variant": variant, "source": source, "metric": metric, "value": value}


def _variant_name(name: str, tp: int) -> str:
    """Return haloctl's name of a variant; a name that can't be parsed stays as it is."""
    try:
        return parse_variant_name(name, ANY_TARGET, tp)[1].name
    except ValueError:
        return name
