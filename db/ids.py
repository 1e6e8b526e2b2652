"""Ids: how they are made, and how one is found by its start."""

import secrets

from sqlalchemy import Column, Connection, select

from db import tables
from jobs.errors import AmbiguousId, NotFound

AFTER_ALL = "~"  #: sorts after whatever an id is made of


def new_job_id(connection: Connection) -> str:
    """One that no job has."""
    while True:
        job = secrets.token_hex(4)
        if connection.scalar(select(tables.jobs.c.id).where(tables.jobs.c.id == job)) is None:
            return job


def task_ids(job: str, count: int) -> list[str]:
    """The ids of a job's tasks in the order of its plan; they sort in that order too."""
    width = max(2, len(str(count)))
    return [f"{job}-{number:0{width}}" for number in range(1, count + 1)]


def attempt_id(task: str, epoch: int) -> str:
    """Of the attempt of a task that has this epoch."""
    return f"{task}-{epoch}"


def job_of(task: str) -> str:
    """The job that a task is of."""
    return task.rpartition("-")[0]


def task_of(attempt: str) -> str:
    """The task that an attempt is of."""
    return attempt.rpartition("-")[0]


def epoch_of(attempt: str) -> int:
    """The epoch of an attempt; 0 for what is no attempt's id."""
    number = attempt.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def find_job(connection: Connection, prefix: str) -> str:
    """The id of the one job whose id starts so; raises NotFound."""
    return _find(connection, "job", tables.jobs.c.id, prefix)


def find_task(connection: Connection, prefix: str) -> str:
    """The id of the one task whose id starts so; raises NotFound."""
    return _find(connection, "task", tables.tasks.c.id, prefix)


def find_attempt(connection: Connection, prefix: str) -> str:
    """The id of the one attempt whose id starts so; raises NotFound."""
    return _find(connection, "attempt", tables.attempts.c.id, prefix)


def find_digest(connection: Connection, prefix: str) -> str:
    """The one sha256 of files that tasks made that starts so; raises NotFound."""
    return _find(connection, "artifact", tables.artifacts.c.sha256, prefix)


def _find(connection: Connection, noun: str, column: Column[str], prefix: str) -> str:
    start = prefix.lower()
    if not start.isascii():
        raise NotFound(noun, prefix)
    alike = select(column).distinct().where(column >= start, column < start + AFTER_ALL).order_by(column).limit(2)
    found = connection.scalars(alike).all()
    if not found:
        raise NotFound(noun, prefix)
    if len(found) > 1 and found[0] != start:
        raise AmbiguousId(noun, prefix)
    return found[0]
