"""The matrix: what stands in the cell of every variant, target and stage."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_

from db import tables
from db.engine import Database
from db.filters import matching
from db.ids import find_job
from db.values import failure_of
from jobs.stages import STAGES
from jobs.state import DONE, Failure, TaskState
from jobs.variants import Attention, Engine, Precision

VERDICTS = DONE | {TaskState.FAILED}
ORDER = ("model", "precision", "attention", "tp", "engine", "nodes", "variant", "target")  #: of rows of several jobs
MOST_PARAMETERS = 10_000  #: of one statement; SQLite takes 32,766, Postgres 65,535


@dataclass(frozen=True)
class Median:
    """A metric of a cell in one workload."""

    metric: str
    unit: str
    median: float
    batch: int | None
    prompt_tokens: int | None


@dataclass(frozen=True)
class CellRow:
    """One stage of one variant."""

    job: str
    task: str
    state: TaskState
    failure: Failure | None  #: of a failed task
    waits_for: str | None
    is_stuck: bool
    blocked_by: str | None
    cached_from: str | None
    warnings: tuple[str, ...]
    ended_at: datetime | None
    metrics: tuple[Median, ...]


@dataclass(frozen=True)
class MatrixRow:
    """One variant on one target."""

    model: str
    variant: str
    target: str
    precision: Precision
    attention: Attention
    tp: int
    engine: Engine
    nodes: int
    stages: Mapping[str, CellRow]  #: those that were asked for and that its engine does, in the order of STAGES


def matrix(
    database: Database,
    *,
    job: str | None = None,
    model: str | None = None,
    variant: str | None = None,
    target: str | None = None,
) -> list[MatrixRow]:
    """A job's matrix in the order of its plan; without a job the newest verdict of every cell over all jobs.

    `job` is an id or the start of one; `model`, `variant` and `target` are names or shell-style patterns.
    """
    with database.reading() as connection:
        wanted = [
            *matching(connection, tables.jobs.c.model, model),
            *matching(connection, tables.cells.c.variant, variant),
            *matching(connection, tables.cells.c.target, target),
        ]
        chosen = _newest(wanted) if job is None else [*wanted, tables.cells.c.job == find_job(connection, job)]
        cells = connection.execute(_cells(chosen)).all()
        medians = _medians(connection, sorted({cell.attempt for cell in cells if cell.attempt}))
    cells = sorted(cells, key=attrgetter("position") if job else attrgetter(*ORDER))
    return [_row(list(row), medians) for _, row in groupby(cells, key=attrgetter("variant", "target"))]


def _cells(conditions: Iterable[ColumnElement[bool]]) -> Select[Any]:
    attempts = tables.attempts.c
    return (
        select(
            tables.cells,
            tables.jobs.c.model,
            tables.tasks.c.state,
            tables.tasks.c.waits_for,
            tables.tasks.c.is_stuck,
            tables.tasks.c.blocked_by,
            tables.tasks.c.attempt,
            attempts.task.label("made_by"),
            attempts.failure_kind,
            attempts.failure_message,
            attempts.warnings,
            attempts.ended_at,
        )
        .join(tables.jobs, tables.jobs.c.id == tables.cells.c.job)
        .join(tables.tasks, tables.tasks.c.id == tables.cells.c.task)
        .join(tables.attempts, attempts.id == tables.tasks.c.attempt, isouter=True)
        .where(*conditions)
    )


def _newest(conditions: Iterable[ColumnElement[bool]]) -> list[ColumnElement[bool]]:
    """Of the cells that fit, the newest verdict for each place; where there is none yet, the newest of any state."""
    cells, jobs, tasks = tables.cells.c, tables.jobs.c, tables.tasks.c
    age = func.row_number().over(
        partition_by=(cells.variant, cells.target, cells.stage),
        order_by=(tasks.state.in_(sorted(VERDICTS)).desc(), jobs.submitted_at.desc(), cells.job),
    )
    ranked = (
        select(cells.job, cells.variant, cells.target, cells.stage, age.label("age"))
        .join(tables.jobs, jobs.id == cells.job)
        .join(tables.tasks, tasks.id == cells.task)
        .where(*conditions)
        .subquery()
    )
    place = (cells.job, cells.variant, cells.target, cells.stage)
    first = select(*(ranked.c[column.name] for column in place)).where(ranked.c.age == 1)
    return [tuple_(*place).in_(first)]


def _medians(connection: Connection, attempts: Sequence[str]) -> dict[str, list[Median]]:
    """By attempt, in the order in which they were measured."""
    columns = tables.measurements.c
    query = select(
        columns.attempt, columns.metric, columns.unit, columns.median, columns.batch, columns.prompt_tokens
    ).order_by(columns.id)
    found: dict[str, list[Median]] = defaultdict(list)
    for start in range(0, len(attempts), MOST_PARAMETERS):
        some = attempts[start : start + MOST_PARAMETERS]
        for row in connection.execute(query.where(columns.attempt.in_(some))):
            found[row.attempt].append(Median(row.metric, row.unit, row.median, row.batch, row.prompt_tokens))
    return found


def _row(cells: list[Any], medians: Mapping[str, list[Median]]) -> MatrixRow:
    first, by_stage = cells[0], {cell.stage: cell for cell in cells}
    return MatrixRow(
        model=first.model,
        variant=first.variant,
        target=first.target,
        precision=Precision(first.precision),
        attention=Attention(first.attention),
        tp=first.tp,
        engine=Engine(first.engine),
        nodes=first.nodes,
        stages={stage: _cell(by_stage[stage], medians) for stage in STAGES if stage in by_stage},
    )


def _cell(cell: Any, medians: Mapping[str, list[Median]]) -> CellRow:
    state = TaskState(cell.state)
    return CellRow(
        job=cell.job,
        task=cell.task,
        state=state,
        failure=failure_of(cell.failure_kind, cell.failure_message) if state is TaskState.FAILED else None,
        waits_for=cell.waits_for,
        is_stuck=cell.is_stuck,
        blocked_by=cell.blocked_by,
        cached_from=cell.made_by if state is TaskState.CACHED else None,
        warnings=tuple(cell.warnings or ()),
        ended_at=cell.ended_at,
        metrics=tuple(medians.get(cell.attempt, ())),
    )
