"""Plans that run a stored task again, with all that it needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.values import axes_of, pin_of
from jobs.plan import Plan, PlannedTask
from jobs.stages.base import Model
from jobs.task import Pin, Resources
from jobs.variants import Variant


@dataclass(frozen=True)
class Replanned:
    """The plan, spec and limits of a job that runs one task of another job, with the tasks that it needs."""

    plan: Plan  #: its tasks' keys are the ids of those that they were planned from; the last one is the task itself
    spec: Mapping[str, Any]
    model: Model
    timeout_s: float


def replan(database: Database, task: str, pin: Pin | None) -> Replanned:
    """Plan to run a task, by its whole id, again where `pin` says; what it needs may run anywhere, or be cached."""
    with database.reading() as connection:
        rows = list(_closure(connection, task))
        variants = _variants(connection, [row.id for row in rows])
        jobs = tables.jobs.c
        columns = (jobs.spec, jobs.model_facts, jobs.timeout_s)
        job = connection.execute(select(*columns).where(jobs.id == rows[-1].job)).one()
    served = variants[task]
    tasks = tuple(_planned(row, [variant for variant in variants[row.id] if variant in served]) for row in rows)
    plan = Plan(tuple(served), (*tasks[:-1], replace(tasks[-1], pin=pin, is_fresh=True)))
    model = Model.of(job.model_facts).named(served[0].model)
    spec = {**job.spec, "model": [model.text], "gate": None}  # a repeated run is inspected, not judged
    return Replanned(plan, spec, model, job.timeout_s)


def _closure(connection: Connection, task: str) -> Iterator[Any]:
    """Yield the rows of all tasks that a task needs, each before those that need it, then its own."""
    row = connection.execute(select(tables.tasks).where(tables.tasks.c.id == task)).one()
    seen: set[str] = set()
    for need in row.needs:
        for needed in _closure(connection, need):
            if needed.id not in seen:
                seen.add(needed.id)
                yield needed
    yield row


def _variants(connection: Connection, tasks: list[str]) -> dict[str, list[Variant]]:
    """Return the variants that each task serves."""
    cells = tables.cells.c
    variants: dict[str, list[Variant]] = {task: [] for task in tasks}
    for row in connection.execute(select(tables.cells).where(cells.task.in_(tasks)).order_by(cells.position)):
        variants[row.task].append(Variant(row.variant, row.target, model=row.model, **axes_of(row)))
    return variants


def _planned(row: Any, variants: list[Variant]) -> PlannedTask:
    return PlannedTask(
        key=row.id,
        stage=row.stage,
        settings=row.settings,
        needs=tuple(row.needs),
        resources=Resources(**row.resources),
        variants=tuple(variants),
        pin=pin_of(row.pin),
        toolchain=row.toolchain,
    )


def jobs_named(database: Database, name: str) -> list[str]:
    """Return the ids of the jobs with a name, newest first."""
    jobs = tables.jobs.c
    with database.reading() as connection:
        query = select(jobs.id).where(jobs.name == name).order_by(jobs.submitted_at.desc(), jobs.id)
        return list(connection.scalars(query))


def newest_job_of(database: Database, variant: str, target: str | None) -> str | None:
    """Return the id of the newest job that was submitted with a variant, if there is one."""
    cells, jobs = tables.cells.c, tables.jobs.c
    query = (
        select(jobs.id)
        .join(tables.cells, cells.job == jobs.id)
        .where(cells.variant == variant, jobs.imported_from.is_(None))
        .order_by(jobs.submitted_at.desc(), jobs.id)
        .limit(1)
    )
    with database.reading() as connection:
        return connection.scalar(query if target is None else query.where(cells.target == target))


def job_facts(database: Database, job: str) -> tuple[Mapping[str, Any], Model]:
    """Return a job's job file, with every default filled in, and its model as it was when it was submitted."""
    columns = tables.jobs.c
    with database.reading() as connection:
        row = connection.execute(select(columns.spec, columns.model_facts).where(columns.id == job)).one()
    return row.spec, Model.of(row.model_facts)
