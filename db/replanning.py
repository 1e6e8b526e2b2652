"""A stored task, with all that it needs, as a plan of its own: for doing it again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from db import tables
from db.engine import Database
from db.values import axes_of, pin_of
from jobs.plan import Plan, PlannedTask
from jobs.stages.base import Model
from jobs.task import Pin, Resources
from jobs.variants import Variant


@dataclass(frozen=True)
class Replanned:
    """What a job needs to be submitted that has one task of another job, and what that needs."""

    plan: Plan  #: its tasks' keys are the ids of those that they were planned from; the last one is the task itself
    spec: Mapping[str, Any]
    model: Model
    timeout_s: float


def replan(database: Database, task: str, pin: Pin | None) -> Replanned:
    """The task, by its whole id, to run anew where it is pinned to; what it needs may run anywhere, or be there."""
    with database.reading() as connection:
        rows = list(_closure(connection, task))
        variants = _variants(connection, [row.id for row in rows])
        jobs = tables.jobs.c
        columns = (jobs.spec, jobs.model_facts, jobs.timeout_s)
        job = connection.execute(select(*columns).where(jobs.id == rows[-1].job)).one()
    served = variants[task]
    tasks = tuple(_planned(row, [one for one in variants[row.id] if one in served]) for row in rows)
    plan = Plan(tuple(served), (*tasks[:-1], replace(tasks[-1], pin=pin, is_fresh=True)))
    model = Model.of(job.model_facts).named(served[0].model)
    spec = {**job.spec, "model": [model.text], "gate": None}  # what is run again is looked at, not judged
    return Replanned(plan, spec, model, job.timeout_s)


def _closure(connection: Connection, task: str) -> Iterator[Any]:
    """The rows of all that it needs, each before what needs it, then its own."""
    row = connection.execute(select(tables.tasks).where(tables.tasks.c.id == task)).one()
    seen: set[str] = set()
    for need in row.needs:
        for needed in _closure(connection, need):
            if needed.id not in seen:
                seen.add(needed.id)
                yield needed
    yield row


def _variants(connection: Connection, tasks: list[str]) -> dict[str, list[Variant]]:
    """By task, those that it serves."""
    cells = tables.cells.c
    found: dict[str, list[Variant]] = {task: [] for task in tasks}
    for row in connection.execute(select(tables.cells).where(cells.task.in_(tasks)).order_by(cells.position)):
        found[row.task].append(Variant(row.variant, row.target, model=row.model, **axes_of(row)))
    return found


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
    """The ids of the jobs that are called so, newest first."""
    jobs = tables.jobs.c
    with database.reading() as connection:
        query = select(jobs.id).where(jobs.name == name).order_by(jobs.submitted_at.desc(), jobs.id)
        return list(connection.scalars(query))
