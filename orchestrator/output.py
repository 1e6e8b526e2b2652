"""The only module that prints: answers go to stdout, messages to stderr."""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import tables
from orchestrator.tables import TextTable

if TYPE_CHECKING:
    from rich.console import Console

SVG_WIDTH = 124
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  #: so that an SVG file loads nothing from the network


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def has_colour() -> bool:
    """Return whether stdout is a terminal that shows colours; see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def fits_terminal(table: TextTable) -> bool:
    """Return whether a table is no wider than the terminal; every table fits where stdout is none."""
    return not is_terminal() or table.width <= shutil.get_terminal_size().columns


def print_line(text: str) -> None:
    """Print a line of the answer."""
    if is_terminal():
        _console().print(text, soft_wrap=True)
    else:
        print_text(f"{text}\n")


def print_message(text: str) -> None:
    """Print a line to stderr: progress, a hint or a warning."""
    if sys.stderr.isatty():
        _console(stderr=True).print(text, soft_wrap=True)
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def print_text(text: str) -> None:
    """Print a text of the answer as it is, without a line end."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print the answer in JSON."""
    print_text(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def print_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows in CSV; a list or a mapping in a cell is JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (row.get(column) for column in columns)
        writer.writerow([json.dumps(value) if isinstance(value, list | dict | tuple) else value for value in values])


def print_table(table: TextTable) -> None:
    """Print a table and its notes as the answer."""
    if not is_terminal():
        print_text(tables.to_plain_text(table))
        return
    console = _console()
    table, constants = tables.drop_constant_columns(table, console.width)
    if constants:
        console.print(constants, soft_wrap=True)
    _print_rich(console, table)


def save_svg(table: TextTable, file: Path, title: str) -> None:
    """Write a table and its notes as an SVG picture, for a page that can't hold coloured text."""
    from rich.console import Console

    console = Console(record=True, width=SVG_WIDTH, file=StringIO(), highlight=False, markup=False, emoji=False)
    _print_rich(console, table)
    file.write_text(WEB_FONTS.sub("", console.export_svg(title=title)), encoding="utf-8")


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def _print_rich(console: "Console", table: TextTable) -> None:
    for index, part in enumerate(tables.split_into_records(table, console.width)):
        if index:
            console.print()
        console.print(tables.to_rich_table(part, console.width))
    if table.notes:
        console.print()
    for note in table.notes:
        console.print(tables.style_cell(note), soft_wrap=True)
