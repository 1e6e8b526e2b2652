"""The matrix: the state and results of every variant, target and stage."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from db.connection.engine import Database
from db.schema import loose_scan, tables
from db.schema.filters import matching, parts
from db.schema.ids import find_job
from db.schema.values import axes_of, failure_of, own_failure_of
from jobs.stages import STAGES
from jobs.state import DONE, Failure, TaskState
from jobs.variants import AXES, Axes

COLUMNS = [name for name, stage in STAGES.items() if not stage.is_service]
VERDICTS = DONE | {TaskState.FAILED}
#: Of rows of several jobs.
ORDER = ("model", *AXES, "variant", "target")
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
    is_unschedulable: bool
    blocked_by: str | None
    cached_from: str | None
    warnings: tuple[str, ...]
    ended_at: datetime | None
    metrics: tuple[Median, ...]
    imported_from: str | None = None  #: the file that tells of it; none: it ran here
    attempt: str | None = None  #: its latest; of a cached task, the earlier task's; None: it has none


@dataclass(frozen=True)
class MatrixRow(Axes):
    """One variant on one target."""

    model: str
    variant: str
    target: str
    stages: Mapping[str, CellRow]  #: those that were asked for and that its engine does, in the order of COLUMNS


def matrix(
    database: Database,
    *,
    job: str | None = None,
    model: str | None = None,
    variant: str | None = None,
    target: str | None = None,
    toolchain: str | None = None,
    before: datetime | None = None,
) -> list[MatrixRow]:
    """Return a job's matrix in the order of its plan; without a job, the newest verdict of every cell over all jobs.

    `job` is an id or the start of one; `model`, `variant`, `target` and `toolchain` are names or shell-style patterns.
    With `before` and without a job: as the verdicts were then.
    """
    cells = tables.cells.c
    with database.reading() as connection:
        wanted = [
            *matching(connection, cells.model, model),
            *matching(connection, cells.toolchain, toolchain),
        ]
        if job is None:
            cell_rows = _newest(connection, variant, target, wanted, before)
        else:
            wanted += [*matching(connection, cells.variant, variant), *matching(connection, cells.target, target)]
            cell_rows = _cells(connection, [*wanted, cells.job == find_job(connection, job)])
        medians = _medians(connection, sorted({cell.attempt for cell in cell_rows if cell.attempt}))
    cell_rows = sorted(cell_rows, key=attrgetter("position") if job else attrgetter(*ORDER))
    return [_row(list(row), medians) for _, row in groupby(cell_rows, key=attrgetter("variant", "target"))]


def _cells(connection: Connection, conditions: Iterable[ColumnElement[bool]]) -> list[Any]:
    attempts = tables.attempts.c
    query = (
        select(
            tables.cells,
            tables.jobs.c.imported_from,
            tables.tasks.c.state,
            tables.tasks.c.waits_for,
            tables.tasks.c.is_unschedulable,
            tables.tasks.c.blocked_by,
            tables.tasks.c.failure,
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
    return list(connection.execute(query))


def _newest(
    connection: Connection,
    variant: str | None,
    target: str | None,
    wanted: Iterable[ColumnElement[bool]],
    before: datetime | None,
) -> list[Any]:
    """Return the newest verdict for each place; where there is none yet, the newest cell of any state.

    This takes two queries: databases can't estimate how few places there are, and would join all cells with them.
    """
    chosen = {tuple(row) for row in connection.execute(_newest_jobs(connection, variant, target, before))}
    jobs = sorted({job for job, *_ in chosen if job})
    cells = (cell for part in parts(jobs) for cell in _cells(connection, [tables.cells.c.job.in_(part), *wanted]))
    return [cell for cell in cells if (cell.job, cell.variant, cell.target, cell.stage) in chosen]


def _newest_jobs(
    connection: Connection, variant: str | None, target: str | None, before: datetime | None
) -> Select[Any]:
    """Select the job of that cell for each place; a variant's name determines its model and toolchain."""
    cells = tables.cells.c
    place = (cells.variant, cells.target, cells.stage)
    places = loose_scan.distinct(place).cte("places")
    newest = (
        select(cells.job)
        .where(*(column == places.c[column.name] for column in place))
        .order_by(cells.submitted_at.desc(), cells.job.desc())
        .limit(1)
        .correlate(places)
    )
    verdict = newest.join(tables.tasks, tables.tasks.c.id == cells.task).where(
        tables.tasks.c.state.in_(sorted(VERDICTS))
    )
    job: ColumnElement[Any] = func.coalesce(verdict.scalar_subquery(), newest.scalar_subquery())
    if before is not None:
        attempts = tables.attempts.c
        ended = verdict.join(tables.attempts, attempts.id == tables.tasks.c.attempt).where(attempts.ended_at < before)
        job = ended.where(cells.submitted_at < before).scalar_subquery()
    return select(job, *places.c).where(
        *matching(connection, cells.variant, variant, places.c.variant),
        *matching(connection, cells.target, target, places.c.target),
    )


def _medians(connection: Connection, attempts: Sequence[str]) -> dict[str, list[Median]]:
    """Return the medians by attempt, in the order in which they were measured."""
    columns = tables.measurements.c
    query = select(
        columns.id, columns.attempt, columns.metric, columns.unit, columns.median, columns.batch, columns.prompt_tokens
    )
    medians: dict[str, list[Median]] = defaultdict(list)
    for start in range(0, len(attempts), MOST_PARAMETERS):
        part = attempts[start : start + MOST_PARAMETERS]
        for row in sorted(connection.execute(query.where(columns.attempt.in_(part))), key=attrgetter("id")):
            medians[row.attempt].append(Median(row.metric, row.unit, row.median, row.batch, row.prompt_tokens))
    return medians


def _row(cells: list[Any], medians: Mapping[str, list[Median]]) -> MatrixRow:
    first, by_stage = cells[0], {cell.stage: cell for cell in cells}
    return MatrixRow(
        model=first.model,
        variant=first.variant,
        target=first.target,
        stages={stage: _cell(by_stage[stage], medians) for stage in COLUMNS if stage in by_stage},
        **axes_of(first),
    )


def _cell(cell: Any, medians: Mapping[str, list[Median]]) -> CellRow:
    state = TaskState(cell.state)
    return CellRow(
        job=cell.job,
        task=cell.task,
        state=state,
        attempt=cell.attempt,
        failure=_failure(cell) if state is TaskState.FAILED else None,
        waits_for=cell.waits_for,
        is_unschedulable=cell.is_unschedulable,
        blocked_by=cell.blocked_by,
        cached_from=cell.made_by if state is TaskState.CACHED else None,
        warnings=tuple(cell.warnings or ()),
        ended_at=cell.ended_at,
        metrics=tuple(medians.get(cell.attempt, ())),
        imported_from=cell.imported_from,
    )


def _failure(cell: Any) -> Failure | None:
    return own_failure_of(cell.failure) or failure_of(cell.failure_kind, cell.failure_message)
