"""The forms that an answer is given in: a table for people, JSON, CSV, Markdown, a Parquet file."""

import json as jsonlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from jobs.errors import BadSetting, StorageUnusable
from orchestrator import output

#: What Markdown, or the HTML in it, would take for something else than text.
MARKDOWN_SIGNS = re.compile(r"([\\|*`\[\]<>~])")
LINE_ENDS = re.compile(r"\s*[\r\n]+\s*")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """A table for people."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()  #: columns of numbers
    notes: Sequence[str] = ()  #: what its words stand for, told below it


@dataclass(frozen=True)
class Form:
    """The one that was asked for; none: a table."""

    json: bool = False
    csv: bool = False
    markdown: bool = False
    parquet: Path | None = None
    svg: Path | None = None

    def __post_init__(self) -> None:
        """Raise BadSetting for more than one."""
        chosen = [f"--{name}" for name, value in vars(self).items() if value]
        if len(chosen) > 1:
            raise BadSetting(" ".join(chosen), "an answer has one form; leave the others out")

    @property
    def is_for_people(self) -> bool:
        """Whether no program reads it."""
        return not (self.json or self.csv or self.parquet or self.svg)

    def give(self, found: Sequence[Row], columns: Sequence[str], shown: Shown, nothing: str) -> None:
        """Answer with rows, all of which have `columns`; people are told `nothing` where there are none."""
        if self.json:
            output.as_json(found)
        elif self.csv:
            output.as_csv(found, columns)
        elif self.parquet:
            write_parquet(self.parquet, found, columns)
        elif not found:
            output.note(nothing)
        elif self.markdown:
            output.raw(markdown_table(shown) + markdown_list(shown.notes))
        elif shown.notes:
            output.matrix(shown.columns, shown.rows, shown.notes)
        else:
            output.table(shown.columns, shown.rows, right=shown.right)


def nothing_found(what: str, *filters: object) -> str:
    """What people are told where there are no rows: with filters there may be others."""
    if any(filters):
        return f"no {what} match: without filters all that there are is shown"
    return f"no {what} yet: `haloctl submit demo --wait` makes first ones"


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return LINE_ENDS.sub(" ", MARKDOWN_SIGNS.sub(r"\\\1", text))


def markdown_table(shown: Shown) -> str:
    """A table as wikis and GitHub take it."""
    cells = [[markdown_text(cell) for cell in row] for row in (shown.columns, *shown.rows)]
    widths = [max(3, *(len(row[index]) for row in cells)) for index in range(len(shown.columns))]
    is_right = [column in shown.right for column in shown.columns]
    rule = [f"{'-' * (width - 1)}{':' if right else '-'}" for width, right in zip(widths, is_right, strict=True)]
    lines = [
        [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_right, strict=True)
        ]
        for row in cells
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (lines[0], rule, *lines[1:]))


def markdown_list(texts: Iterable[str]) -> str:
    """Texts below a table, each with a dot; none of them is nothing."""
    return "".join(f"{'' if index else chr(10)}- {markdown_text(text)}\n" for index, text in enumerate(texts))


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Say which file can't be written: raises StorageUnusable."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise StorageUnusable(str(file), f"{why}; name another file") from error


def write_parquet(file: Path, found: Iterable[Row], columns: Sequence[str]) -> None:
    """Write rows to a file; mappings become JSON, for their keys differ from row to row."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise BadSetting("--parquet", "pyarrow is missing: pip install 'haloctl[parquet]'") from None
    rows = [{name: _flat(row.get(name)) for name in columns} for row in found]
    table = pa.Table.from_pylist(rows) if rows else pa.table({name: pa.array([], pa.string()) for name in columns})
    with writing(file):
        parquet.write_table(table, file)
    output.note(f"{output.count(len(rows), 'row')} written to {file}")


def _flat(value: object) -> object:
    if isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value)
    ):
        return jsonlib.dumps(value, default=str)
    return list(value) if isinstance(value, tuple) else value


def plain(value: object) -> object:
    """A value of a database as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else value
