"""The only module that prints: answers go to stdout, messages to stderr.

Hidden characters are printed escaped (`jobs.plain_text`), so that no name, message or log can move the cursor, set the
clipboard or forge a line. Only `print_raw` prints text as it is.
"""

import csv
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.plain_text import escape_hidden, one_line
from orchestrator import tables
from orchestrator.tables import TextTable

if TYPE_CHECKING:
    from rich.console import Console

SVG_WIDTH = 124
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  #: so that an SVG file loads nothing from the network
FORMULA = re.compile(r"[=+@\t\r]|-(?![\d.]+\Z)")  #: what a text begins with that a spreadsheet takes for a formula


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
    line = one_line(text)
    if is_terminal():
        _console().print(line, soft_wrap=True)
    else:
        print_raw(f"{line}\n")


def print_message(text: str) -> None:
    """Print a line to stderr: progress, a hint or a warning."""
    line = one_line(text)
    if sys.stderr.isatty():
        message_console().print(line, soft_wrap=True)
    else:
        print_error(line)


def warn_of_held_back_variables() -> None:
    """Tell which variables of this process its stages do not see although they would change results."""
    from workers.environment import held_back_warning

    if warning := held_back_warning():
        print_message(warning)


def print_error(text: str) -> None:
    """Print an error to stderr; its further lines are indented, so that none looks like a message of its own."""
    print_prompt(text.rstrip("\n").replace("\n", "\n  ") + "\n")


def print_prompt(text: str) -> None:
    """Print a text of several lines to stderr, without a line end of its own."""
    sys.stderr.write(escape_hidden(text, keep="\n\t"))
    sys.stderr.flush()


def print_text(text: str) -> None:
    """Print a text of several lines as the answer, without a line end of its own."""
    print_raw(escape_hidden(text, keep="\n\t"))


def print_raw(text: str) -> None:
    """Print a text as it is: one that is made of safe parts, or that the user asked for as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print the answer in JSON, in ASCII."""
    print_raw(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def print_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows in CSV; a list or a mapping in a cell is JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])


def _csv_cell(value: object) -> object:
    """Return what a cell holds; an apostrophe before a text prevents that a spreadsheet takes it for a formula."""
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=str)
    if value is None or isinstance(value, Number):
        return value
    text = str(value)
    return escape_hidden(f"'{text}" if FORMULA.match(text) else text)


def print_table(table: TextTable) -> None:
    """Print a table and its notes as the answer."""
    if not is_terminal():
        print_raw(tables.to_plain_text(table))
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
    svg = console.export_svg(title=one_line(title))
    file.write_text(WEB_FONTS.sub("", svg), encoding="utf-8")


def message_console() -> "Console":
    """Return a console of rich on stderr."""
    return _console(stderr=True)


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
