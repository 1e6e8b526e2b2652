"""What users ask of jobs that are stored: to cancel, and to try again."""

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, select

from db import tables
from db.ids import find_job, find_task, job_of
from db.moves import Found, lock_all, move
from jobs.errors import NothingToDo
from jobs.state import ACTIVE, ENDED, RETRYABLE, TaskState

Needs = Mapping[str, Collection[str]]


def cancel(connection: Connection, at: datetime, name: str) -> list[str]:
    """Cancel what has not ended of a job or a task; returns the ids of what was cancelled."""
    tasks, task = _named(connection, name)
    chosen = [found for found in tasks if task in (None, found.id)]
    moving = [found for found in chosen if found.state not in ENDED | {TaskState.CANCELLING}]
    if not moving:
        raise NothingToDo(f"{name} has ended, or is being cancelled already")
    for found in moving:
        to = TaskState.CANCELLING if found.state in ACTIVE else TaskState.CANCELLED
        move(connection, at, found.id, found.state, to, detail="asked for")
    return [found.id for found in moving]


def retry(connection: Connection, at: datetime, name: str) -> list[str]:
    """Put back what can be tried again of a job, or of a task and what is tied to it; returns the ids."""
    tasks, task = _named(connection, name)
    chosen = {found.id for found in tasks} if task is None else tied_to(task, _needs(connection, job_of(task)))
    moving = [found for found in tasks if found.id in chosen and found.state in RETRYABLE]
    if not any(task in (None, found.id) for found in moving):
        raise NothingToDo(f"nothing of {name} failed, was blocked or was cancelled: there is nothing to try again")
    for found in moving:
        move(connection, at, found.id, found.state, TaskState.PENDING, detail="tried again", tries=0)
    return [found.id for found in moving]


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
