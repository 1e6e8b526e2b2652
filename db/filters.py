"""What rows are chosen by: names, shell-style patterns, many ids.

Statements that a head runs in each of its steps are made once, with `among`: making one costs more than running it.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sqlalchemy import Column, ColumnElement, Connection, bindparam, select

from db import loose_scan

PATTERN_SIGNS = frozenset("*?[")
AT_ONCE = 1000


def matching(
    connection: Connection, column: Column[str], pattern: str | None, compared: ColumnElement[str] | None = None
) -> list[ColumnElement[bool]]:
    """The condition that a column fits a pattern, or what is compared in its place; none when nothing was asked for.

    Patterns are matched here, against the few names that there are: databases do not agree on how.
    """
    if pattern is None:
        return []
    compared = column if compared is None else compared
    if not PATTERN_SIGNS & set(pattern):
        return [compared == pattern]
    begins = any(next(iter(index.columns)) is column for index in column.table.indexes)
    names = connection.scalars(loose_scan.distinct([column]) if begins else select(column).distinct())
    return [compared.in_([name for name in names if fnmatchcase(name, pattern)])]


def among(column: ColumnElement[str]) -> ColumnElement[bool]:
    """The condition that a column is one of the `ids` that the statement is given."""
    return column.in_(bindparam("ids", expanding=True))


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids in portions that one query can name: databases bound how many values they take."""
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
