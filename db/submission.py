"""A plan as rows: a job, its tasks, and the cells that they stand in."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert

from db import tables
from db.ids import new_job_id, task_ids
from jobs.digest import what_matters
from jobs.hashing import digest_of
from jobs.plan import Plan, PlannedTask
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.state import TaskState
from jobs.variants import Variant

Row = dict[str, Any]


def submit(
    connection: Connection,
    at: datetime,
    plan: Plan,
    *,
    name: str,
    spec: Mapping[str, Any],
    model: Model,
    submitted_by: str,
    timeout_s: float,
    reuse: bool,
    reuse_measurements: bool = False,
    priority: int = 0,
    job_timeout_s: float | None = None,
    schedule: str | None = None,
    imported_from: str | None = None,
) -> str:
    """Store a job with its tasks and cells; returns its id. `schedule` or `imported_from` says whence it came."""
    job = new_job_id(connection)
    row = {
        "id": job,
        "name": name,
        "model": ", ".join(one.name for one in model.all),
        "model_facts": asdict(model),
        "spec": dict(spec),
        "submitted_by": submitted_by,
        "submitted_at": at,
        "timeout_s": timeout_s,
        "reuse": reuse,
        "priority": priority,
        "job_timeout_s": job_timeout_s,
        "due_at": None if job_timeout_s is None else at + timedelta(seconds=job_timeout_s),
        "schedule": schedule,
        "imported_from": imported_from,
    }
    task_rows, cell_rows = rows_of(job, plan, model.name, reuse=reuse, reuse_measurements=reuse_measurements)
    connection.execute(insert(tables.jobs).values(**row))
    connection.execute(insert(tables.tasks), task_rows)
    connection.execute(insert(tables.cells), [{**cell, "submitted_at": at} for cell in cell_rows])
    by = f"schedule {schedule} of {submitted_by}" if schedule else submitted_by
    said = f"imported from {imported_from} by {by}" if imported_from else f"submitted by {by}"
    connection.execute(insert(tables.events).values(at=at, job=job, detail=said))
    return job


def rows_of(job: str, plan: Plan, model: str, *, reuse: bool, reuse_measurements: bool) -> tuple[list[Row], list[Row]]:
    """The rows of `tasks` and `cells`; with `reuse` earlier tasks' outputs may be taken over, or measurements too.

    `model` is of the variants that name none.
    """
    ids = dict(zip((task.key for task in plan.tasks), task_ids(job, len(plan.tasks)), strict=True))
    position = {variant: number for number, variant in enumerate(plan.variants)}
    tasks = [_task_row(job, task, ids, reuse and _may_be_reused(task, reuse_measurements)) for task in plan.tasks]
    cells = [
        {"model": variant.model or model, **_cell_row(job, task, variant, ids[task.key], position[variant])}
        for task in plan.tasks
        for variant in task.variants
    ]
    return tasks, cells


def _task_row(job: str, task: PlannedTask, ids: dict[str, str], reuse: bool) -> Row:
    return {
        "id": ids[task.key],
        "job": job,
        "stage": task.stage,
        "subject": task.subject,
        "target": task.settings.get("target", ""),
        "settings": dict(task.settings),
        "needs": [ids[need] for need in task.needs],
        "after": ids[task.after] if task.after else None,
        "resources": asdict(task.resources),
        "pin": asdict(task.pin) if task.pin else None,
        "toolchain": task.toolchain,
        "reuse": reuse,
        "state": TaskState.PENDING,
        "epoch": 0,
        "asked_epoch": 0,
        "likeness": digest_of([task.stage, what_matters(task.settings)]),
        "is_stuck": False,
    }


def _may_be_reused(task: PlannedTask, measurements: bool) -> bool:
    """What is measured on each device is not: numbers of one are none of another."""
    is_measured = STAGES[task.stage].is_measured
    return not task.is_fresh and (not is_measured or (measurements and task.pin is None))


def _cell_row(job: str, task: PlannedTask, variant: Variant, task_id: str, position: int) -> Row:
    return {
        "job": job,
        "position": position,
        "variant": variant.name,
        "target": variant.target,
        "stage": task.stage,
        **variant.axes,
        "task": task_id,
        "is_first": variant == next(other for other in task.variants if other.name == variant.name),
    }
