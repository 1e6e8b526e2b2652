"""Tables as text: plain for pipes, laid out by rich for terminals.

A cell is one line without hidden characters, whatever it was made of: no value forges a row.

rich takes about as long to import as a short command runs, so that a table that goes to a pipe does without it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jobs.plain_text import one_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

#: The style of a cell, by its first word.
STYLES = {
    "PASS": "green",
    "FAIL": "bold red",
    "blocked": "dim",
    "unschedulable": "yellow",
    "running": "cyan",
    "cancelled": "dim",
    "succeeded": "green",
    "cached": "green",
    "failed": "bold red",
    "waiting": "yellow",
}
FIRST_WORD = re.compile(r"\w*")
GAP = "  "  #: between two columns
MIN_WRAPPED_WIDTH = 9  #: of a column whose cells are wrapped; below it a row is split into a record


@dataclass(frozen=True)
class TextTable:
    """A table for people, with notes below it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()  #: columns that are aligned to the right, which numbers are
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Bring each text into one line, with hidden characters escaped."""
        for name in ("columns", "right", "notes"):
            object.__setattr__(self, name, _safe_texts(getattr(self, name)))
        rows = [_safe_texts(row) for row in self.rows]
        if any(safe is not row for safe, row in zip(rows, self.rows, strict=True)):
            object.__setattr__(self, "rows", rows)

    def column_width(self, index: int) -> int:
        """Return the width of the widest cell of a column, its heading included, in terminal cells."""
        return max(display_width(row[index]) for row in (self.columns, *self.rows))

    @property
    def width(self) -> int:
        """The width in terminal cells when nothing is wrapped."""
        widths = [self.column_width(index) for index in range(len(self.columns))]
        return sum(widths) + len(GAP) * (len(widths) - 1)


def _safe_texts(texts: Sequence[str]) -> Sequence[str]:
    safe = [*map(one_line, texts)]
    return texts if safe == list(texts) else safe


def display_width(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded_rows(table: TextTable, min_width: int = 0) -> Iterator[list[str]]:
    """Yield the headings and then the rows, with each cell padded to the width of its column."""
    widths = [max(min_width, table.column_width(index)) for index in range(len(table.columns))]
    for row in (table.columns, *table.rows):
        padding = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True)]
        yield [
            blanks + cell if column in table.right else cell + blanks
            for column, cell, blanks in zip(table.columns, row, padding, strict=True)
        ]


def to_plain_text(table: TextTable) -> str:
    """Return a table for programs such as `awk`: one line for each row, neither wrapped, cut nor coloured."""
    lines = [GAP.join(cells).rstrip() for cells in padded_rows(table)]
    return "\n".join([*lines, *(["", *table.notes] if table.notes else [])]) + "\n"


def style_cell(text: str) -> "Text":
    """Return a cell in the style of its first word."""
    from rich.text import Text

    return Text(text, style=STYLES.get(FIRST_WORD.match(text)[0], ""))  # type: ignore[index]


def to_rich_table(table: TextTable, width: int) -> "Table":
    """Return a table for a terminal of a width, without borders."""
    from rich.table import Table

    unwrapped = unwrapped_columns(table, width)
    rich_table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, len(GAP), 0, 0))
    rich_table.show_header = any(table.columns)
    for column in table.columns:
        justify = "right" if column in table.right else "left"
        rich_table.add_column(column, justify=justify, overflow="fold", no_wrap=column in unwrapped)  # type: ignore[arg-type]
    for row in table.rows:
        rich_table.add_row(*map(style_cell, row))
    return rich_table


def drop_constant_columns(table: TextTable, width: int) -> tuple[TextTable, str]:
    """Return a table without the columns that are equal in all rows, and a line that names their values.

    A table that fits, or that would lose all its columns, is returned as it is, with an empty line.
    """
    constant = [
        index for index, name in enumerate(table.columns) if name and len({row[index] for row in table.rows}) == 1
    ]
    kept = [index for index in range(len(table.columns)) if index not in constant]
    if len(table.rows) < 2 or table.width <= width or not kept:
        return table, ""
    narrow = replace(
        table,
        columns=[table.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in table.rows],
    )
    values = ", ".join(f"{table.columns[index]} {value}" for index in constant if (value := table.rows[0][index]))
    return narrow, f"in all rows: {values}" if values else ""


def unwrapped_columns(table: TextTable, width: int) -> tuple[str, ...]:
    """Return the columns that fit a terminal of a width unwrapped: first numbers, then the first, then narrow ones."""
    widths = {name: table.column_width(index) for index, name in enumerate(table.columns)}
    unwrapped: list[str] = []
    for name in sorted(widths, key=lambda name: (name not in table.right, name != table.columns[0], widths[name])):
        names = [*unwrapped, name]
        wrapped_count = len(table.columns) - len(names)
        if sum(widths[name] + len(GAP) for name in names) + wrapped_count * MIN_WRAPPED_WIDTH <= width:
            unwrapped = names
    return tuple(unwrapped)


def split_into_records(table: TextTable, width: int) -> Iterator[TextTable]:
    """Yield a table of names and values for each row, where a terminal of a width is too narrow for the columns.

    A single row is split wherever it does not fit. A table that is not split is yielded as it is.
    """
    is_narrow = len(table.rows) == 1 or width < len(table.columns) * (MIN_WRAPPED_WIDTH + len(GAP))
    if not is_narrow or table.width <= width:
        yield table
        return
    for row in table.rows:
        yield TextTable(("", ""), [pair for pair in zip(table.columns, row, strict=True) if pair[1]])
