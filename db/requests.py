"""What users ask of jobs that are stored: to cancel, and to try again."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from db import tables
from db.filters import parts
from db.ids import find_job, find_task, job_of
from db.imported import is_imported
from db.moves import Found, Move, lock_all, make
from jobs.errors import NothingToDo
from jobs.state import ACTIVE, ENDED, RETRYABLE, TaskState

Needs = Mapping[str, Collection[str]]


def cancel(connection: Connection, at: datetime, name: str) -> list[str]:
    """Cancel what has not ended of a job or a task; returns the ids of what was cancelled."""
    tasks, task = _named(connection, name)
    moved = _cancel(connection, at, [found for found in tasks if task in (None, found.id)], "asked for", {})
    if not moved:
        raise NothingToDo(f"{name} has ended, or is being cancelled already")
    return moved


def _cancel(
    connection: Connection, at: datetime, tasks: Sequence[Found], detail: str, values: Mapping[str, str]
) -> list[str]:
    moving = [found for found in tasks if found.state not in ENDED | {TaskState.CANCELLING}]
    make(connection, at, [Move(found, _cancelled(found.state), detail, values=values) for found in moving])
    return [found.id for found in moving]


def _cancelled(state: TaskState) -> TaskState:
    return TaskState.CANCELLING if state in ACTIVE else TaskState.CANCELLED


def due(connection: Connection, at: datetime) -> list[str]:
    """The jobs whose time is over."""
    columns = tables.jobs.c
    return list(connection.scalars(select(columns.id).where(columns.due_at <= at).order_by(columns.id)))


def expire(connection: Connection, at: datetime) -> list[str]:
    """Cancel what has not ended of the jobs whose time is over; returns those of them that had not ended."""
    columns, expired = tables.jobs.c, due(connection, at)
    cancelled = []
    for part in parts(expired):
        rows = connection.execute(select(columns.id, columns.job_timeout_s).where(columns.id.in_(part)))
        for job, timeout_s in sorted(tuple(row) for row in rows):
            detail = f"the job's time of {timeout_s:g} s is over"
            tasks = lock_all(connection, tables.tasks.c.job == job)
            if _cancel(connection, at, tasks, detail, {"blocked_by": detail}):
                cancelled.append(job)
        connection.execute(update(tables.jobs).where(columns.id.in_(part)).values(due_at=None))
    return cancelled


def retry(connection: Connection, at: datetime, name: str) -> list[str]:
    """Put back what can be tried again of a job, or of a task and what is tied to it; returns the ids."""
    tasks, task = _named(connection, name)
    if is_imported(connection, job_of(tasks[0].id)):
        raise NothingToDo(f"{name} was imported: there is nothing to try again")
    chosen = {found.id for found in tasks} if task is None else tied_to(task, _needs(connection, job_of(task)))
    moving = [found for found in tasks if found.id in chosen and found.state in RETRYABLE]
    if not any(task in (None, found.id) for found in moving):
        raise NothingToDo(f"nothing of {name} failed, was blocked or was cancelled: there is nothing to try again")
    make(
        connection,
        at,
        [Move(found, TaskState.PENDING, "tried again", values={"asked_epoch": found.epoch}) for found in moving],
    )
    _give_time(connection, at, job_of(moving[0].id))
    return [found.id for found in moving]


def _give_time(connection: Connection, at: datetime, job: str) -> None:
    """A job that was asked for again may take as long as the first time."""
    columns = tables.jobs.c
    timeout_s = connection.scalar(select(columns.job_timeout_s).where(columns.id == job))
    if timeout_s is not None:
        again = at + timedelta(seconds=timeout_s)
        connection.execute(update(tables.jobs).where(columns.id == job).values(due_at=again))


def tied_to(task: str, needs: Needs) -> set[str]:
    """A task with all that it needs, directly or not, and all that needs it."""
    return {task} | _reached(task, needs) | {other for other in needs if task in _reached(other, needs)}


def _reached(task: str, needs: Needs) -> set[str]:
    direct = set(needs[task])
    return direct.union(*(_reached(need, needs) for need in direct))


def _needs(connection: Connection, job: str) -> Needs:
    rows = connection.execute(select(tables.tasks.c.id, tables.tasks.c.needs).where(tables.tasks.c.job == job))
    return {row.id: row.needs for row in rows}


def _named(connection: Connection, name: str) -> tuple[list[Found], str | None]:
    """The tasks of the job that a name stands for or is in, and the one task if it stands for one."""
    task = find_task(connection, name) if "-" in name else None
    job = job_of(task) if task else find_job(connection, name)
    return lock_all(connection, tables.tasks.c.job == job), task
