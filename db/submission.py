"""A plan as rows: tasks, and the cells that they stand in."""

from dataclasses import asdict
from typing import Any

from db.ids import task_ids
from jobs.digest import digest_of, what_matters
from jobs.plan import Plan, PlannedTask
from jobs.state import TaskState
from jobs.variants import Variant

Row = dict[str, Any]


def rows_of(job: str, plan: Plan) -> tuple[list[Row], list[Row]]:
    """The rows of `tasks` and `cells`."""
    ids = dict(zip((task.key for task in plan.tasks), task_ids(job, len(plan.tasks)), strict=True))
    position = {variant: number for number, variant in enumerate(plan.variants)}
    tasks = [_task_row(job, task, ids) for task in plan.tasks]
    cells = [
        _cell_row(job, task, variant, ids[task.key], position[variant])
        for task in plan.tasks
        for variant in task.variants
    ]
    return tasks, cells


def _task_row(job: str, task: PlannedTask, ids: dict[str, str]) -> Row:
    return {
        "id": ids[task.key],
        "job": job,
        "stage": task.stage,
        "subject": task.subject,
        "target": task.settings.get("target", ""),
        "settings": dict(task.settings),
        "needs": [ids[need] for need in task.needs],
        "resources": asdict(task.resources),
        "pin": asdict(task.pin) if task.pin else None,
        "state": TaskState.PENDING,
        "epoch": 0,
        "asked_epoch": 0,
        "likeness": digest_of([task.stage, what_matters(task.settings)]),
        "is_stuck": False,
    }


def _cell_row(job: str, task: PlannedTask, variant: Variant, task_id: str, position: int) -> Row:
    return {
        "job": job,
        "position": position,
        "variant": variant.name,
        "target": variant.target,
        "stage": task.stage,
        "precision": variant.precision,
        "attention": variant.attention,
        "tp": variant.tp,
        "engine": variant.engine,
        "nodes": variant.nodes,
        "task": task_id,
        "is_first": variant == next(other for other in task.variants if other.name == variant.name),
    }
