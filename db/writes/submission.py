"""Inserting a submitted job: its row, its tasks, and the cells of its matrix."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert

from db.schema import tables
from db.schema.ids import new_job_id, task_ids
from jobs.digest import identity_settings
from jobs.hashing import digest_of
from jobs.plan import Plan, PlannedTask
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.state import TaskState
from jobs.variants import Variant

Row = dict[str, Any]


@dataclass(frozen=True)
class Submission:
    """A planned job with everything that is stored beside its plan."""

    plan: Plan
    name: str
    spec: Mapping[str, Any]  #: the job file as JSON values
    model: Model
    submitted_by: str
    timeout_s: float  #: limit of each attempt
    reuse: bool  #: outputs of earlier tasks may be reused, except measurements
    reuse_measurements: bool = False  #: measurements of earlier tasks may be reused too
    priority: int = 0  #: higher runs first
    job_timeout_s: float | None = None  #: limit of the whole job
    schedule: str | None = None  #: name of the schedule that submits it
    imported_from: str | None = None  #: file that it is imported from


def insert_job(connection: Connection, at: datetime, submission: Submission) -> str:
    """Store a job with its tasks and cells; returns its id."""
    job = new_job_id(connection)
    connection.execute(insert(tables.jobs).values(_job_row(job, at, submission)))
    task_rows, cell_rows = rows_of(
        job,
        submission.plan,
        submission.model.name,
        reuse=submission.reuse,
        reuse_measurements=submission.reuse_measurements,
    )
    connection.execute(insert(tables.tasks), task_rows)
    connection.execute(insert(tables.cells), [{**cell, "submitted_at": at} for cell in cell_rows])
    connection.execute(insert(tables.events).values(at=at, job=job, detail=_origin(submission)))
    return job


def _job_row(job: str, at: datetime, submission: Submission) -> Row:
    job_timeout_s = submission.job_timeout_s
    return {
        "id": job,
        "name": submission.name,
        "model": ", ".join(model.name for model in submission.model.all),
        "model_facts": asdict(submission.model),
        "spec": dict(submission.spec),
        "submitted_by": submission.submitted_by,
        "submitted_at": at,
        "timeout_s": submission.timeout_s,
        "reuse": submission.reuse,
        "priority": submission.priority,
        "job_timeout_s": job_timeout_s,
        "due_at": None if job_timeout_s is None else at + timedelta(seconds=job_timeout_s),
        "schedule": submission.schedule,
        "imported_from": submission.imported_from,
    }


def _origin(submission: Submission) -> str:
    user, schedule, file = submission.submitted_by, submission.schedule, submission.imported_from
    by = f"schedule {schedule} of {user}" if schedule else user
    return f"imported from {file} by {by}" if file else f"submitted by {by}"


def rows_of(job: str, plan: Plan, model: str, *, reuse: bool, reuse_measurements: bool) -> tuple[list[Row], list[Row]]:
    """Return the rows of `tasks` and `cells` for a plan; `model` is the model of variants that name none."""
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
        "base_epoch": 0,
        "duration_key": digest_of([task.stage, identity_settings(task.settings)]),
        "is_unschedulable": False,
    }


def _may_be_reused(task: PlannedTask, measurements: bool) -> bool:
    """Whether a task may reuse earlier outputs: a measurement that is pinned to a device never does."""
    stage = STAGES[task.stage]
    if task.is_fresh or stage.is_service:
        return False
    return not stage.is_measured or (measurements and task.pin is None)


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
