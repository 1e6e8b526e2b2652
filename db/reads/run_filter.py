"""SQL conditions that select runs, and whether few runs match them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select

from db.schema import loose_scan, tables
from db.schema.filters import PATTERN_SIGNS, matching
from db.schema.ids import find_attempt, find_job, find_task
from jobs.metrics import METRICS

FEW = 1500  #: attempts that are looked through, rather than all measurements from the newest on
KNOWN_BY = ("variant", "toolchain", "engine", "model")  #: what a variant's name says


@dataclass(frozen=True)
class RunFilter:
    """Criteria that select runs; those left out match all."""

    metrics: tuple[str, ...]
    job: str | None = None  #: its name, or the start of its id
    model: str | None = None  #: names or patterns
    variant: str | None = None
    target: str | None = None
    toolchain: str | None = None
    engine: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    result: str | None = None  #: a task's or an attempt's id, or the start of it
    tasks: tuple[str, ...] | None = None  #: their whole ids
    variants: tuple[str, ...] | None = None  #: their whole names
    node: str | None = None
    batch: int | None = None
    prompt_tokens: int | None = None
    disturbed: bool = False  #: also measurements that something else disturbed

    @property
    def names_variants(self) -> bool:
        """Whether it selects only some of the variants."""
        return any((self.model, self.variant, self.toolchain, self.engine, self.variants))


def wanted(connection: Connection, chosen: RunFilter) -> list[ColumnElement[bool]] | None:
    """Return the SQL conditions of a filter; None if nothing can match."""
    attempts, tasks, cells = tables.attempts.c, tables.tasks.c, tables.cells.c
    conditions: list[ColumnElement[bool]] = []
    if chosen.names_variants:
        names = _variants(connection, chosen)
        if not names:
            return None
        conditions.append(cells.variant.in_(names))
    conditions += matching(connection, cells.target, chosen.target)
    if chosen.job is not None:
        conditions.append(tasks.job == _job(connection, chosen.job))
    if chosen.result is not None:
        conditions.append(_of_result(connection, chosen.result))
    if chosen.tasks is not None:
        conditions.append(tasks.id.in_(chosen.tasks))
    if chosen.node is not None:
        conditions.append(attempts.node == chosen.node)
    for name in ("batch", "prompt_tokens"):
        if (size := getattr(chosen, name)) is not None:
            conditions.append(tables.measurements.c[name] == size)
    if chosen.since is not None:
        conditions.append(attempts.ended_at >= chosen.since)
    if chosen.until is not None:
        conditions.append(attempts.ended_at < chosen.until)
    return conditions


def _job(connection: Connection, text: str) -> str:
    """Return the newest job with a name, or else the job with that prefix of its id."""
    columns = tables.jobs.c
    named = select(columns.id).where(columns.name == text).order_by(columns.submitted_at.desc(), columns.id).limit(1)
    return connection.scalar(named) or find_job(connection, text)


def _of_result(connection: Connection, name: str) -> ColumnElement[bool]:
    if name.count("-") > 1:
        return tables.attempts.c.id == find_attempt(connection, name)
    return tables.tasks.c.id == find_task(connection, name)


def _variants(connection: Connection, chosen: RunFilter) -> list[str]:
    """Return the names of the variants that a filter selects."""
    if chosen.variants:
        return list(chosen.variants)
    patterns = {name: pattern for name in KNOWN_BY if (pattern := getattr(chosen, name)) is not None}
    if patterns.keys() == {"variant"} and not PATTERN_SIGNS & set(patterns["variant"]):
        return [patterns["variant"]]
    cells = tables.cells.c  # the name determines these: one cell of each is enough
    names = loose_scan.distinct([cells.variant]).cte("names")
    job = select(cells.job).where(cells.variant == names.c.variant).order_by(cells.target, cells.stage).limit(1)
    samples = select(names.c.variant, job.scalar_subquery().label("job")).subquery()
    query = (
        select(cells.variant, cells.toolchain, cells.engine, cells.model)
        .distinct()
        .join(samples, and_(samples.c.job == cells.job, samples.c.variant == cells.variant))
    )
    rows = connection.execute(query).mappings().all()
    return [row["variant"] for row in rows if all(fnmatchcase(row[name], patterns[name]) for name in patterns)]


def is_few(connection: Connection, chosen: RunFilter, conditions: Sequence[ColumnElement[bool]]) -> bool:
    """Return whether to query the attempts first and then their measurements, rather than to scan all measurements."""
    if (chosen.job, chosen.tasks, chosen.result) != (None, None, None):
        return True
    attempts, cells = tables.attempts.c, tables.cells.c
    if chosen.names_variants:
        stages = {METRICS[metric].stage for metric in chosen.metrics}
        candidates = select(cells.task).where(*_about("cells", conditions), cells.stage.in_(stages))
    elif chosen.since is not None or chosen.until is not None:
        candidates = select(attempts.id).where(*_about("attempts", conditions))
    else:
        return False
    count = connection.scalar(select(func.count()).select_from(candidates.limit(FEW).subquery()))
    return (count or 0) < FEW


def _about(table: str, conditions: Iterable[Any]) -> list[Any]:
    """Return the conditions whose left side is a column of a table."""
    return [
        condition for condition in conditions if getattr(getattr(condition.left, "table", None), "name", None) == table
    ]
