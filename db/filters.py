"""What rows are chosen by: names, shell-style patterns, many ids."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sqlalchemy import Column, ColumnElement, Connection, select

PATTERN_SIGNS = frozenset("*?[")
AT_ONCE = 1000


def matching(connection: Connection, column: Column[str], pattern: str | None) -> list[ColumnElement[bool]]:
    """The condition that a column fits a pattern; none when nothing was asked for.

    Patterns are matched here, against the few names that there are: databases do not agree on how.
    """
    if pattern is None:
        return []
    if not PATTERN_SIGNS & set(pattern):
        return [column == pattern]
    names = connection.scalars(select(column).distinct())
    return [column.in_([name for name in names if fnmatchcase(name, pattern)])]


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids in portions that one query can name: databases bound how many values they take."""
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
