"""Measurements and artifacts of all jobs, selected by model, variant, target, metric, time and job."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, or_, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import matching
from db.schema.ids import find_job
from db.schema.values import axes_of, devices_of
from jobs.errors import NotFound
from jobs.task import Device
from jobs.variants import AXES, Axes


@dataclass(frozen=True)
class ResultRow(Axes):
    """One measurement of one variant, with its conditions; `toolchain` is that of its task."""

    id: int
    position: int  #: of the variant among those that the measurement counts for
    job: str
    task: str
    attempt: str
    stage: str
    model: str
    variant: str
    target: str  #: empty when the stage does not depend on it
    metric: str
    unit: str
    median: float
    samples: tuple[float, ...]
    batch: int | None
    prompt_tokens: int | None
    context: Mapping[str, Any]
    node: str
    devices: tuple[Device, ...]
    versions: Mapping[str, str]
    measured_at: datetime


@dataclass(frozen=True)
class ArtifactRow:
    """One file that an attempt made."""

    job: str
    task: str
    attempt: str
    stage: str
    subject: str
    target: str  #: empty when the stage does not depend on it
    name: str
    kind: str
    sha256: str
    size_bytes: int
    made_at: datetime


def results(
    database: Database,
    *,
    job: str | None = None,
    model: str | None = None,
    variant: str | None = None,
    target: str | None = None,
    toolchain: str | None = None,
    metric: str | None = None,
    since: datetime | None = None,
    task: str | None = None,
    limit: int | None = None,
    after: tuple[int, int] | None = None,
) -> list[ResultRow]:
    """Return measurements, newest first: of every attempt, or with `job` those that its tasks made or reuse.

    There is a row for each variant that a measurement counts for, and `limit` counts rows. With `after`, the id and
    position of a row, those that follow it. `task` is the whole id of one that made them.
    """
    columns = tables.measurements.c
    query = (
        _made(tables.measurements, job)
        .add_columns(
            tables.cells.c.position,
            tables.cells.c.variant,
            *(tables.cells.c[name] for name in AXES if name != "toolchain"),
            tables.cells.c.model,
            tables.attempts.c.places,
            tables.attempts.c.node,
            tables.tasks.c.toolchain,
            tables.attempts.c.versions,
        )
        .join(tables.cells, and_(tables.cells.c.task == tables.tasks.c.id, tables.cells.c.is_first))
        .order_by(*_newest_first(is_narrow=not (job is variant is task is None)), tables.cells.c.position)
        .limit(limit)
    )
    if since is not None:
        query = query.where(tables.attempts.c.ended_at >= since)
    if after is not None:
        last, position = after
        query = query.where(columns.id <= last, or_(columns.id < last, tables.cells.c.position > position))
    with database.reading() as connection:
        wanted = [
            *matching(connection, columns.metric, metric),
            *matching(connection, tables.cells.c.variant, variant),
            *matching(connection, tables.tasks.c.toolchain, toolchain),
            *matching(connection, tables.cells.c.model, model),
            *_matching_task(connection, job, target),
            *([] if task is None else [tables.tasks.c.id == task]),
        ]
        return [_result_row(row) for row in connection.execute(query.where(*wanted))]


def artifacts(
    database: Database,
    *,
    job: str | None = None,
    model: str | None = None,
    variant: str | None = None,
    target: str | None = None,
    kind: str | None = None,
    limit: int | None = None,
    after: tuple[str, str] | None = None,
) -> list[ArtifactRow]:
    """Return artifacts, newest first, with `job` as for `results`; one row each, however many variants it serves.

    With `after`, the attempt and name of an artifact, those that follow it. Raises NotFound for one that there is not.
    """
    columns = tables.artifacts.c
    query = (
        _made(tables.artifacts, job)
        .add_columns(tables.tasks.c.subject)
        .order_by(tables.attempts.c.ended_at.desc(), columns.attempt, columns.name)
        .limit(limit)
    )
    with database.reading() as connection:
        wanted = [*matching(connection, columns.kind, kind), *_matching_task(connection, job, target)]
        cells = tables.cells.c
        fits = [*matching(connection, cells.variant, variant), *matching(connection, cells.model, model)]
        if fits:
            wanted.append(tables.tasks.c.id.in_(select(tables.cells.c.task).where(*fits)))
        if after is not None:
            wanted.append(_follows(connection, *after))
        return [_artifact_row(row) for row in connection.execute(query.where(*wanted))]


def _follows(connection: Connection, attempt: str, name: str) -> ColumnElement[bool]:
    """Return the condition that an artifact follows another in the order of `artifacts`."""
    columns, ended_at = tables.artifacts.c, tables.attempts.c.ended_at
    at = connection.scalar(select(ended_at).where(tables.attempts.c.id == attempt))
    if at is None:
        raise NotFound("artifact", f"{attempt}/{name}")
    same_attempt = and_(columns.attempt == attempt, columns.name > name)
    return or_(ended_at < at, and_(ended_at == at, or_(columns.attempt > attempt, same_attempt)))


def _made(what: Table, job: str | None) -> Select[Any]:
    """Select what attempts made, with the tasks that made it; for a job, with its tasks that made or reuse it."""
    attempts, tasks = tables.attempts.c, tables.tasks.c
    link = attempts.task == tasks.id if job is None else attempts.id == tasks.attempt
    return (
        select(what, attempts.ended_at, tasks.id.label("task"), tasks.job, tasks.stage, tasks.target)
        .join(tables.attempts, attempts.id == what.c.attempt)
        .join(tables.tasks, link)
    )


def _newest_first(*, is_narrow: bool) -> list[ColumnElement[Any]]:
    """Return the order of measurements: by id, or for few rows an equal order that no index has.

    Few rows are selected first, then sorted; given an index in the right order, SQLite would scan all of it for them.
    """
    by_id: list[ColumnElement[Any]] = [tables.measurements.c.id.desc()]
    return [tables.attempts.c.ended_at.desc(), *by_id] if is_narrow else by_id


def _matching_task(connection: Connection, job: str | None, target: str | None) -> list[ColumnElement[bool]]:
    return [
        *([] if job is None else [tables.tasks.c.job == find_job(connection, job)]),
        *matching(connection, tables.tasks.c.target, target),
    ]


def _result_row(row: Any) -> ResultRow:
    return ResultRow(
        id=row.id,
        position=row.position,
        job=row.job,
        task=row.task,
        attempt=row.attempt,
        stage=row.stage,
        model=row.model,
        variant=row.variant,
        target=row.target,
        metric=row.metric,
        unit=row.unit,
        median=row.median,
        samples=tuple(row.samples),
        batch=row.batch,
        prompt_tokens=row.prompt_tokens,
        context=row.context,
        node=row.node,
        devices=devices_of(row.places),
        versions=row.versions,
        measured_at=row.ended_at,
        **axes_of(row),
    )


def _artifact_row(row: Any) -> ArtifactRow:
    return ArtifactRow(
        job=row.job,
        task=row.task,
        attempt=row.attempt,
        stage=row.stage,
        subject=row.subject,
        target=row.target,
        name=row.name,
        kind=row.kind,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        made_at=row.ended_at,
    )
