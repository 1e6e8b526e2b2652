"""Conditions on names, shell-style patterns and many ids.

Statements that the head runs in each step are built once, with `among`: building one costs more than running it.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from sqlalchemy import Column, ColumnElement, Connection, and_, bindparam, func, select

from db.schema import loose_scan, tables
from jobs.state import ACTIVE, TaskState

PATTERN_SIGNS = frozenset("*?[")
AT_ONCE = 1000
_NEWEST_EVENT = select(func.coalesce(func.max(tables.events.c.id), 0))

#: Conditions on events: one attempt begins, or ends. Events are numbered in the order of what happened, whatever clocks
#: said then.
IS_BEGIN = tables.events.c.to_state == TaskState.RUNNING
IS_END = and_(tables.events.c.from_state.in_(sorted(ACTIVE)), tables.events.c.to_state.not_in(sorted(ACTIVE)))


def matching(
    connection: Connection, column: Column[str], pattern: str | None, compared: ColumnElement[str] | None = None
) -> list[ColumnElement[bool]]:
    """Return the condition that a column, or `compared` in its place, fits a pattern; none without a pattern.

    Patterns are matched in Python against the few different names, since databases match them differently.
    """
    if pattern is None:
        return []
    compared = column if compared is None else compared
    if not PATTERN_SIGNS & set(pattern):
        return [compared == pattern]
    begins = any(next(iter(index.columns)) is column for index in column.table.indexes)
    names = connection.scalars(loose_scan.distinct([column]) if begins else select(column).distinct())
    return [compared.in_([name for name in names if fnmatchcase(name, pattern)])]


def newest_event(connection: Connection) -> int:
    """Return the number of the newest event; 0 before the first."""
    return int(connection.execute(_NEWEST_EVENT).scalar_one())


def among(column: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that a column is among the statement's parameter `ids`."""
    return column.in_(bindparam("ids", expanding=True))


def parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ids into parts that one query can take: databases limit the number of parameters."""
    for start in range(0, len(ids), AT_ONCE):
        yield ids[start : start + AT_ONCE]
