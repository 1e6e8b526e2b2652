"""What people filter by: names, or shell-style patterns."""

from fnmatch import fnmatchcase

from sqlalchemy import Column, ColumnElement, Connection, select

PATTERN_SIGNS = frozenset("*?[")


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
