"""The tables of a page in Markdown, as GitHub writes them, and of a file in CSV."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

from jobs.errors import FileError


@dataclass(frozen=True)
class Cell:
    """What stands in a cell."""

    text: str  #: all of it, without what only shapes it
    beside_links: str  #: the same without what links say
    links: tuple[tuple[str, str], ...] = ()  #: what each says, and its address


@dataclass(frozen=True)
class MarkdownTable:
    """One table."""

    heading: str  #: of the section that it stands in
    line: int  #: of the page, from 1
    columns: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]  #: each with its line; as many cells as columns


def tables_of(page: str) -> Iterator[MarkdownTable]:
    """Every table of a page, in its order."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    heading = ""
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[index + 1].content
        elif token.type == "table_open":
            end = next(later for later in range(index, len(tokens)) if tokens[later].type == "table_close")
            yield _table(heading, tokens[index:end])


def table_of_csv(file: str, text: str) -> MarkdownTable:
    """The one table of a file; its cells may have links in them, as Markdown writes them. Raises FileError."""
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(row)]
    except csv.Error as error:
        raise FileError(file, reader.line_num, "", f"is not CSV: {error}") from error
    if not rows:
        raise FileError(file, None, "", "is empty")
    (line, columns), *others = rows
    for number, row in others:
        if len(row) > len(columns):
            raise FileError(file, number, "", "has more cells than there are columns")
    filled = ((number, [*row, *[""] * (len(columns) - len(row))]) for number, row in others)
    parser = MarkdownIt("commonmark")
    cells = tuple((number, tuple(_cell(parser.parseInline(text)[0]) for text in row)) for number, row in filled)
    return MarkdownTable("", line, tuple(map(_tidy, columns)), cells)


def _table(heading: str, tokens: Sequence[Token]) -> MarkdownTable:
    rows: list[tuple[int, list[Cell]]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append((_line(token), []))
        elif token.type == "inline":
            rows[-1][1].append(_cell(token))
    (line, head), *others = rows
    columns = tuple(cell.text for cell in head)
    return MarkdownTable(heading, line, columns, tuple((at, tuple(cells)) for at, cells in others))


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _cell(token: Token) -> Cell:
    text, beside = "", ""
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
                beside += child.content
    return Cell(_tidy(text), _tidy(beside), tuple(links))


def _tidy(text: str) -> str:
    return " ".join(text.split())
