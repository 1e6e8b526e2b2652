"""The conditions that runs are chosen by, and whether few fit them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_, func, select

from db import loose_scan, tables
from db.filters import PATTERN_SIGNS, matching
from db.ids import find_attempt, find_job, find_task
from jobs.metrics import METRICS

if TYPE_CHECKING:
    from db.runs import Chosen

FEW = 1500  #: attempts that are looked through, rather than all measurements from the newest on
KNOWN_BY = ("variant", "toolchain", "engine", "model")  #: what a variant's name says


def wanted(connection: Connection, chosen: "Chosen") -> list[ColumnElement[bool]] | None:
    """The conditions; None where nothing can fit."""
    attempts, tasks, cells = tables.attempts.c, tables.tasks.c, tables.cells.c
    found: list[ColumnElement[bool]] = []
    if chosen.names_variants:
        names = _variants(connection, chosen)
        if not names:
            return None
        found.append(cells.variant.in_(names))
    found += matching(connection, cells.target, chosen.target)
    if chosen.job is not None:
        found.append(tasks.job == _job(connection, chosen.job))
    if chosen.result is not None:
        found.append(_of_result(connection, chosen.result))
    if chosen.tasks is not None:
        found.append(tasks.id.in_(chosen.tasks))
    if chosen.node is not None:
        found.append(attempts.node == chosen.node)
    for name in ("batch", "prompt_tokens"):
        if (size := getattr(chosen, name)) is not None:
            found.append(tables.measurements.c[name] == size)
    if chosen.since is not None:
        found.append(attempts.ended_at >= chosen.since)
    if chosen.until is not None:
        found.append(attempts.ended_at < chosen.until)
    return found


def _job(connection: Connection, text: str) -> str:
    """By the start of its id, or the newest that is called so."""
    columns = tables.jobs.c
    named = select(columns.id).where(columns.name == text).order_by(columns.submitted_at.desc(), columns.id).limit(1)
    return connection.scalar(named) or find_job(connection, text)


def _of_result(connection: Connection, name: str) -> ColumnElement[bool]:
    if name.count("-") > 1:
        return tables.attempts.c.id == find_attempt(connection, name)
    return tables.tasks.c.id == find_task(connection, name)


def _variants(connection: Connection, chosen: "Chosen") -> list[str]:
    """The names of the variants that are asked for."""
    if chosen.variants:
        return list(chosen.variants)
    asked = {name: pattern for name in KNOWN_BY if (pattern := getattr(chosen, name)) is not None}
    if asked.keys() == {"variant"} and not PATTERN_SIGNS & set(asked["variant"]):
        return [asked["variant"]]
    cells = tables.cells.c  # the name says it all, so that one cell of each tells
    names = loose_scan.distinct([cells.variant]).cte("names")
    job = select(cells.job).where(cells.variant == names.c.variant).order_by(cells.target, cells.stage).limit(1)
    one = select(names.c.variant, job.scalar_subquery().label("job")).subquery()
    query = (
        select(cells.variant, cells.toolchain, cells.engine, cells.model)
        .distinct()
        .join(one, and_(one.c.job == cells.job, one.c.variant == cells.variant))
    )
    found = connection.execute(query).mappings().all()
    return [row["variant"] for row in found if all(fnmatchcase(row[name], asked[name]) for name in asked)]


def is_few(connection: Connection, chosen: "Chosen", conditions: Sequence[ColumnElement[bool]]) -> bool:
    """Whether to find the attempts first and their measurements then, rather than to go back through all of these."""
    if (chosen.job, chosen.tasks, chosen.result) != (None, None, None):
        return True
    attempts, cells = tables.attempts.c, tables.cells.c
    if chosen.names_variants:
        stages = {METRICS[metric].stage for metric in chosen.metrics}
        found = select(cells.task).where(*(one for one in conditions if _is_of(one, "cells")), cells.stage.in_(stages))
    elif chosen.since is not None or chosen.until is not None:
        found = select(attempts.id).where(*(one for one in conditions if _is_of(one, "attempts")))
    else:
        return False
    count = connection.scalar(select(func.count()).select_from(found.limit(FEW).subquery()))
    return (count or 0) < FEW


def _is_of(condition: Any, table: str) -> bool:
    return getattr(getattr(condition.left, "table", None), "name", None) == table
