"""Requests of users about stored jobs: cancel and retry, and the time limits of jobs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from db.schema import tables
from db.schema.filters import parts
from db.schema.ids import find_job, find_task, job_of
from db.schema.imported import is_imported
from db.writes.transitions import LockedTask, Transition, apply, lock_where
from jobs.errors import NothingToDo
from jobs.state import ACTIVE, ENDED, RETRYABLE, TaskState

#: The details of events by which users' requests are told from what the head did.
REQUESTED, RETRIED = "asked for", "tried again"

Needs = Mapping[str, Collection[str]]


def cancel(connection: Connection, at: datetime, name: str) -> list[str]:
    """Cancel a job or a task; returns the ids of the tasks that were cancelled."""
    tasks, task = _named(connection, name)
    moved = _cancel(connection, at, [each for each in tasks if task in (None, each.id)], REQUESTED, {})
    if not moved:
        raise NothingToDo(f"{name} has ended or is being cancelled")
    return moved


def _cancel(
    connection: Connection, at: datetime, tasks: Sequence[LockedTask], detail: str, values: Mapping[str, str]
) -> list[str]:
    moving = [task for task in tasks if task.state not in ENDED | {TaskState.CANCELLING}]
    apply(connection, at, [Transition(task, _cancelled(task.state), detail, values=values) for task in moving])
    return [task.id for task in moving]


def _cancelled(state: TaskState) -> TaskState:
    return TaskState.CANCELLING if state in ACTIVE else TaskState.CANCELLED


def due(connection: Connection, at: datetime) -> list[str]:
    """Return the jobs whose time limit has passed."""
    columns = tables.jobs.c
    return list(connection.scalars(select(columns.id).where(columns.due_at <= at).order_by(columns.id)))


def expire(connection: Connection, at: datetime) -> list[str]:
    """Cancel the jobs whose time limit has passed; returns those that had not ended."""
    columns, expired = tables.jobs.c, due(connection, at)
    cancelled = []
    for part in parts(expired):
        rows = connection.execute(select(columns.id, columns.job_timeout_s).where(columns.id.in_(part)))
        for job, timeout_s in sorted(tuple(row) for row in rows):
            detail = f"the job's time of {timeout_s:g} s is over"
            tasks = lock_where(connection, tables.tasks.c.job == job)
            if _cancel(connection, at, tasks, detail, {"blocked_by": detail}):
                cancelled.append(job)
        connection.execute(update(tables.jobs).where(columns.id.in_(part)).values(due_at=None))
    return cancelled


def retry(connection: Connection, at: datetime, name: str) -> list[str]:
    """Put the retryable tasks of a job, or of a task and those connected to it, back to pending; returns their ids."""
    tasks, task = _named(connection, name)
    if is_imported(connection, job_of(tasks[0].id)):
        raise NothingToDo(f"{name} was imported: there is nothing to try again")
    chosen = {each.id for each in tasks} if task is None else connected_to(task, _needs(connection, job_of(task)))
    moving = [each for each in tasks if each.id in chosen and each.state in RETRYABLE]
    if not any(task in (None, each.id) for each in moving):
        raise NothingToDo(f"nothing of {name} failed, was blocked or was cancelled: there is nothing to try again")
    apply(
        connection,
        at,
        [Transition(each, TaskState.PENDING, RETRIED, values={"base_epoch": each.epoch}) for each in moving],
    )
    _give_time(connection, at, job_of(moving[0].id))
    return [each.id for each in moving]


def _give_time(connection: Connection, at: datetime, job: str) -> None:
    """Restart the time limit of a job."""
    columns = tables.jobs.c
    timeout_s = connection.scalar(select(columns.job_timeout_s).where(columns.id == job))
    if timeout_s is not None:
        again = at + timedelta(seconds=timeout_s)
        connection.execute(update(tables.jobs).where(columns.id == job).values(due_at=again))


def connected_to(task: str, needs: Needs) -> set[str]:
    """Return a task, all tasks that it needs, directly or not, and all tasks that need it."""
    return {task} | _reached(task, needs) | {other for other in needs if task in _reached(other, needs)}


def _reached(task: str, needs: Needs) -> set[str]:
    direct = set(needs[task])
    return direct.union(*(_reached(need, needs) for need in direct))


def _needs(connection: Connection, job: str) -> Needs:
    rows = connection.execute(select(tables.tasks.c.id, tables.tasks.c.needs).where(tables.tasks.c.job == job))
    return {row.id: row.needs for row in rows}


def _named(connection: Connection, name: str) -> tuple[list[LockedTask], str | None]:
    """Return the locked tasks of the job with an id, or of the task with it, and this task's whole id."""
    task = find_task(connection, name) if "-" in name else None
    job = job_of(task) if task else find_job(connection, name)
    return lock_where(connection, tables.tasks.c.job == job), task
