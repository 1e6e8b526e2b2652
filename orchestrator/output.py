"""The one place that prints: answers go to stdout, everything else to stderr."""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import east_asian_width

if TYPE_CHECKING:  # rich is slow to import, and only a terminal needs it
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
LEAST_WIDTH = 10  #: of a column that can be broken
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  #: a picture fetches nothing; monospace will do


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def is_terminal() -> bool:
    """Whether somebody looks at the answer as it comes."""
    return sys.stdout.isatty()


def is_colourful() -> bool:
    """Whether he wants colours: see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def answer(text: str) -> None:
    """A line of what was asked for."""
    if is_terminal():
        _console().print(text, soft_wrap=True)
    else:
        raw(f"{text}\n")


def note(text: str) -> None:
    """A line that is not the answer: progress, hints, warnings."""
    if sys.stderr.isatty():
        _console(stderr=True).print(text, soft_wrap=True)
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


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


def styled(text: str) -> "Text":
    """A cell in the colour of the word that it starts with."""
    from rich.text import Text

    return Text(text, style=STYLES.get(FIRST_WORD.match(text)[0], ""))  # type: ignore[index]


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), whole: Container[str] = ()
) -> "Table":
    """A table without lines, for people and for `awk`; cells of `whole` columns are never broken."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(styled(cell) for cell in row))
    return table


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table as the answer; one row that is too wide for a terminal stands upright, a line for each column."""
    lines = list(rows)
    if not is_terminal():
        raw(plain_table(columns, lines, right))
        return
    console = _console()
    if len(lines) == 1 and _width(columns, lines) > console.width:
        upright = make_table(("", ""), [pair for pair in zip(columns, lines[0], strict=True) if pair[1]])
        upright.show_header = False
        console.print(upright)
        return
    shown, kept, equal = narrowed(columns, lines, console.width)
    if equal:
        console.print(equal, soft_wrap=True)
    console.print(make_table(shown, kept, right, unbroken(shown, kept, right, console.width)))


def narrowed(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]], str]:
    """Where a table is wider, it without the columns that are equal in all rows, and a line that says those."""
    if len(rows) < 2 or _width(columns, rows) <= width:
        return columns, rows, ""
    cells = {column: {row[index] for row in rows} for index, column in enumerate(columns)}
    equal = [column for column in columns if column and len(cells[column]) == 1]
    kept = [index for index, column in enumerate(columns) if column not in equal]
    if not kept:
        return columns, rows, ""
    said = ", ".join(f"{column} {value}" for column in equal if (value := next(iter(cells[column]))))
    return (
        [columns[index] for index in kept],
        [[row[index] for index in kept] for row in rows],
        f"in all rows: {said}" if said else "",
    )


def unbroken(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int
) -> tuple[str, ...]:
    """The columns that are not broken where a table is wider: numbers, and the first one, if there is room for them."""
    widths = {column: _width([column], [[row[index]] for row in rows]) for index, column in enumerate(columns)}
    numbers = [column for column in columns if column in right]
    for wanted in ((*numbers, columns[0]), numbers):
        others = len(columns) - len(set(wanted))
        if sum(widths[column] + 2 for column in {*wanted}) + others * LEAST_WIDTH <= width:
            return tuple(wanted)
    return ()


def _width(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    return _places(plain_table(columns, rows).partition("\n")[0])


def fits(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bool:
    """Whether a table is no wider than the terminal; where nobody looks, every table is."""
    return not is_terminal() or _width(columns, rows) <= shutil.get_terminal_size().columns


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> str:
    """The same table where nobody looks: nothing is wrapped, cut or coloured, and a row is a line."""
    lines = [[_in_one_line(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(_places(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(
        "  ".join(
            f"{' ' * (width - _places(cell))}{cell}" if column in right else f"{cell}{' ' * (width - _places(cell))}"
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        + "\n"
        for line in lines
    )


def _places(text: str) -> int:
    """How many characters' room a text takes: two for each of those that are wide, as Chinese ones are."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(sign) in "WF") for sign in text)


def _in_one_line(cell: str) -> str:
    return cell if cell.isprintable() else " ".join(cell.split())


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
    """Three digits that matter, without an exponent where people don't expect one.

    What is rounded shows all three of them, 0.800; what is no longer than that stands as it was written, 0.8.
    """
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        if abs(value) >= 999.5 or value == round(value):
            return f"{value:.0f}"
        short = f"{value:.3g}"
        return short if float(short) == value else f"{value:#.3g}".removesuffix(".")
    return f"{value:.2e}"


def matrix(columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]) -> None:
    """Print the matrix as the answer, and under it what its words stand for."""
    if is_terminal():
        _print_matrix(_console(), columns, rows, notes)
    else:
        below = "".join(f"{text}\n" for text in notes)
        raw(plain_table(columns, rows) + (f"\n{below}" if below else ""))


def matrix_picture(
    file: Path, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]
) -> None:
    """Write the matrix as a picture (SVG), for a page that can't hold coloured text."""
    from rich.console import Console

    console = Console(record=True, width=PICTURE_WIDTH, file=StringIO(), highlight=False, markup=False, emoji=False)
    _print_matrix(console, columns, rows, notes)
    picture = WEB_FONTS.sub("", console.export_svg(title=title))
    file.write_text(picture, encoding="utf-8")


def _print_matrix(
    console: "Console", columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]
) -> None:
    lines = list(rows)
    console.print(make_table(columns, lines, whole=unbroken(columns, lines, (), console.width)))
    for count, text in enumerate(notes):
        if not count:
            console.print()
        console.print(styled(text), soft_wrap=True)
