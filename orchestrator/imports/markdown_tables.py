"""Parses the tables of a Markdown page, with GitHub's syntax, and of a CSV file."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from jobs.errors import FileError

MAX_PAGE_BYTES = 1 << 19
MAX_CELL = 2000  #: characters


@dataclass(frozen=True)
class TableCell:
    """One cell of a table."""

    text: str  #: all of its text, without markup
    text_outside_links: str
    links: tuple[tuple[str, str], ...] = ()  #: text and address of each


@dataclass(frozen=True)
class MarkdownTable:
    """One table of a page."""

    heading: str  #: of its section
    line: int  #: of the page, from 1
    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[TableCell, ...]], ...]  #: each with its line; as many cells as columns


def parse_markdown_tables(file: str, page: str) -> Iterator[MarkdownTable]:
    """Yield the tables of a Markdown page in their order; raises FileError."""
    links: dict[str, Any] = {}  # that the page defines for its cells
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.disable("inline")  # but in tables: it takes long, and nothing else is read
    tokens = parser.parse(page, links)
    cell_parser = CellParser(file, links)
    heading = ""
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[index + 1].content
        elif token.type == "table_open":
            end = next(later for later in range(index, len(tokens)) if tokens[later].type == "table_close")
            yield _table(heading, tokens[index:end], cell_parser)


def parse_csv_table(file: str, text: str) -> MarkdownTable:
    """Parse a CSV file; its cells may have links in Markdown's syntax. Raises FileError."""
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(row)]
    except csv.Error as error:
        raise FileError(file, reader.line_num, "", f"is not CSV: {error}") from error
    if not rows:
        raise FileError(file, None, "", "is empty")
    (line, columns), *body = rows
    for number, row in body:
        if len(row) > len(columns):
            raise FileError(file, number, "", "has more cells than there are columns")
    filled = ((number, [*row, *[""] * (len(columns) - len(row))]) for number, row in body)
    parser = CellParser(file, {})
    cells = tuple((number, tuple(parser.parse(number, text) for text in row)) for number, row in filled)
    return MarkdownTable("", line, tuple(map(_collapse_spaces, columns)), cells)


class CellParser:
    """Parses cells of a bounded length, because the time for one grows with its square."""

    def __init__(self, file: str, links: dict[str, Any]) -> None:
        self._file, self._links, self._parser = file, links, MarkdownIt("commonmark")

    def parse(self, line: int, text: str) -> TableCell:
        """Parse one cell; raises FileError."""
        if len(text) > MAX_CELL:
            raise FileError(self._file, line, "", f"has a cell of more than {MAX_CELL} characters")
        return _cell(self._parser.parseInline(text, self._links)[0])


def _table(heading: str, tokens: Sequence[Token], parser: CellParser) -> MarkdownTable:
    rows: list[tuple[int, list[TableCell]]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append((_line(token), []))
        elif token.type == "inline":
            rows[-1][1].append(parser.parse(rows[-1][0], token.content))
    (line, head), *body = rows
    columns = tuple(cell.text for cell in head)
    return MarkdownTable(heading, line, columns, tuple((row_line, tuple(cells)) for row_line, cells in body))


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _cell(token: Token) -> TableCell:
    text, outside_links = "", ""
    links: list[tuple[str, str]] = []
    is_link = False
    for child in token.children or []:
        if child.type == "link_open":
            is_link = True
            links.append(("", str(child.attrs["href"])))
        elif child.type == "link_close":
            is_link = False
        elif child.type in ("text", "code_inline"):
            text += child.content
            if is_link:
                links[-1] = (links[-1][0] + child.content, links[-1][1])
            else:
                outside_links += child.content
    return TableCell(_collapse_spaces(text), _collapse_spaces(outside_links), tuple(links))


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())
