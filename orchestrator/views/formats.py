"""The formats that a command answers in: a table for people, JSON, CSV, Markdown, a Parquet file."""

import json as jsonlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import BadSetting, StorageUnusable
from jobs.plain_text import one_line
from orchestrator import output
from orchestrator.formatting import format_count
from orchestrator.tables import TextTable, display_width, padded_rows

#: Characters that have a meaning in Markdown, or in the HTML inside it.
MARKDOWN_SYNTAX = re.compile(r"([\\|*`\[\]<>~])")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class OutputFormat:
    """The format that a command was asked to answer in; a table for people when no field is set."""

    json: bool = False
    csv: bool = False
    markdown: bool = False
    parquet: Path | None = None
    svg: Path | None = None

    def __post_init__(self) -> None:
        """Raise BadSetting for more than one format."""
        formats = [f"--{name}" for name, value in vars(self).items() if value]
        if len(formats) > 1:
            raise BadSetting(" ".join(formats), "choose one output format")

    @property
    def is_for_people(self) -> bool:
        """Whether the answer is a table that people read, in a terminal or in Markdown."""
        return not (self.json or self.csv or self.parquet or self.svg)

    def print_rows(
        self, rows: Sequence[Row], columns: Sequence[str], build_table: Callable[[], TextTable], empty_message: str
    ) -> None:
        """Answer with rows that all have `columns`; for people with `build_table()`, or with a message without rows."""
        if self.json:
            output.print_json(rows)
        elif self.csv:
            output.print_csv(rows, columns)
        elif self.parquet:
            write_parquet(self.parquet, rows, columns)
        elif not rows:
            output.print_message(empty_message)
        elif self.markdown:
            table = build_table()
            output.print_text(markdown_table(table) + markdown_list(table.notes))
        else:
            output.print_table(build_table())


def nothing_found(what: str, *filters: object) -> str:
    """Return the message for an answer without rows, which depends on whether filters were given."""
    if any(filters):
        return f"no {what} match: run it without filters to see all"
    return f"no {what} yet: run `haloctl submit demo --wait` for the first ones"


def markdown_text(text: str) -> str:
    """Escape a text for Markdown, in one line."""
    return MARKDOWN_SYNTAX.sub(r"\\\1", one_line(text))


def markdown_table(table: TextTable) -> str:
    """Return a table in the Markdown of GitHub and of most wikis, without its notes."""
    rows = [[markdown_text(cell) for cell in row] for row in table.rows]
    escaped = TextTable([markdown_text(column) for column in table.columns], rows, table.right)
    header, *body = padded_rows(escaped, min_width=3)
    alignments = [":" if column in table.right else "-" for column in table.columns]
    rule = [f"{'-' * (display_width(cell) - 1)}{end}" for cell, end in zip(header, alignments, strict=True)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *body))


def markdown_list(texts: Iterable[str]) -> str:
    """Return texts as a list below a table; an empty text for no texts."""
    return "".join(f"{'' if index else chr(10)}- {markdown_text(text)}\n" for index, text in enumerate(texts))


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Raise StorageUnusable with the file's name for any OSError."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise StorageUnusable(str(file), f"{why}; name another file") from error


def write_parquet(file: Path, rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Write rows to a Parquet file, with mappings as JSON, because their keys differ from row to row."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise BadSetting("--parquet", "pyarrow is missing: run pip install 'haloctl[parquet]'") from None
    flat_rows = [{name: _flatten(row.get(name)) for name in columns} for row in rows]
    empty = {name: pa.array([], pa.string()) for name in columns}
    try:
        table = pa.Table.from_pylist(flat_rows) if flat_rows else pa.table(empty)
    except (pa.ArrowException, OverflowError) as error:
        raise BadSetting("--parquet", f"a column has values of several types: {error}; cast it") from error
    with writing(file):
        parquet.write_table(table, file)
    output.print_message(f"{format_count(len(flat_rows), 'row')} written to {file}")


def _flatten(value: object) -> object:
    values = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(element, Mapping) for element in values):
        return jsonlib.dumps(value, default=str)
    return list(value) if isinstance(value, tuple) else value
