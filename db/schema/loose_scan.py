"""Loose index scans: the few distinct values at the start of an index, by seeking from one to the next.

`SELECT DISTINCT` reads every row: neither SQLite nor Postgres does a loose index scan by itself.
"""

from collections.abc import Sequence

from sqlalchemy import CTE, Column, Connection, ScalarSelect, Select, func, select

from db.schema import tables


def distinct(columns: Sequence[Column[str]]) -> Select[tuple[str, ...]]:
    """Select the distinct values of columns that an index begins with, in its order; they must not be null."""
    known: CTE | None = None
    for column in columns:
        known = _walk(column, known)
    assert known is not None
    return select(*known.c).where(known.c[columns[-1].name].is_not(None))


def variants(connection: Connection) -> list[str]:
    """Return the names of all variants."""
    return [str(name) for name in connection.scalars(distinct([tables.cells.c.variant]))]


def _walk(column: Column[str], known: CTE | None) -> CTE:
    """Return the values of the columns before, each with the values of this one, followed by a null."""
    before = [] if known is None else [value for value in known.c if value.name != column.name]
    first = select(*before, _next(column, known).label(column.name))
    if known is not None:
        first = first.where(known.c[before[-1].name].is_not(None))
    walk = first.cte(f"each_{column.name}", recursive=True)
    step = select(*(walk.c[value.name] for value in before), _next(column, walk, walk))
    return walk.union_all(step.where(walk.c[column.name].is_not(None)))


def _next(column: Column[str], known: CTE | None, after: CTE | None = None) -> ScalarSelect[str]:
    """Return the smallest value beside those of the columns before, or the smallest after one."""
    query = select(func.min(column))
    for value in [] if known is None else known.c:
        if value.name != column.name:
            query = query.where(column.table.c[value.name] == value)
    if after is not None:
        query = query.where(column > after.c[column.name])
    return (query.correlate(known) if known is not None else query).scalar_subquery()
