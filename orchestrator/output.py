"""The one place that prints: answers go to stdout, everything else to stderr."""

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: How a state or verdict looks on a terminal.
STYLES = {
    "PASS": "green",
    "FAIL": "bold red",
    "blocked": "dim",
    "waits": "yellow",
    "running": "cyan",
    "cancelled": "dim",
    "succeeded": "green",
    "cached": "green",
    "failed": "bold red",
    "waiting": "yellow",
}

FIRST_WORD = re.compile(r"\w*")
PICTURE_WIDTH = 124
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  #: a picture fetches nothing; monospace will do
MACHINE_WIDTH = 10_000  #: nothing is wrapped or cut when nobody looks


def _console(*, stderr: bool = False) -> Console:
    stream_is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        width=None if stream_is_terminal else MACHINE_WIDTH,
    )


def answer(text: str) -> None:
    """A line of what was asked for."""
    _console().print(text, soft_wrap=True)


def note(text: str) -> None:
    """A line that is not the answer: progress, hints, warnings."""
    _console(stderr=True).print(text, soft_wrap=True)


def raw(text: str) -> None:
    """Text as it is, without a line end of ours."""
    sys.stdout.write(text)
    sys.stdout.flush()


def as_json(value: object) -> None:
    """The answer for programs."""
    raw(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Rows for spreadsheets; lists and mappings in a cell are JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])


def _csv_cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | dict | tuple) else value


def styled(text: str) -> Text:
    """A cell in the colour of the word that it starts with."""
    return Text(text, style=STYLES.get(FIRST_WORD.match(text)[0], ""))  # type: ignore[index]


def make_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A table without lines, for people and for `awk`."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(styled(cell) for cell in row))
    return table


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table as the answer."""
    _console().print(make_table(columns, rows, right))


def count(number_of: int, noun: str) -> str:
    """`1 task`, `27 tasks`."""
    return f"{number_of} {noun}" if number_of == 1 else f"{number_of} {noun}s"


def seconds(value: float | None) -> str:
    """A duration as people say it: 0.8 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def size(value: float) -> str:
    """Bytes with a binary unit: 2.1 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def quantity(value: float, unit: str) -> str:
    """A value with its unit."""
    return size(value) if unit == "bytes" else f"{number(value)} {unit if unit != '1' else ''}".rstrip()


def number(value: float) -> str:
    """Three digits that matter, without an exponent where people don't expect one."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
    return f"{value:.2e}"


def matrix(columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]) -> None:
    """Print the matrix as the answer, and under it what its words stand for."""
    _print_matrix(_console(), columns, rows, notes)


def matrix_picture(
    file: Path, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]
) -> None:
    """Write the matrix as a picture (SVG), for a page that can't hold coloured text."""
    console = Console(record=True, width=PICTURE_WIDTH, file=StringIO(), highlight=False, markup=False, emoji=False)
    _print_matrix(console, columns, rows, notes)
    picture = WEB_FONTS.sub("", console.export_svg(title=title))
    file.write_text(picture, encoding="utf-8")


def _print_matrix(
    console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]
) -> None:
    console.print(make_table(columns, rows))
    for count, text in enumerate(notes):
        if not count:
            console.print()
        console.print(styled(text), soft_wrap=True)
