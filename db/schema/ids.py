"""Ids: how they are built, and how one is found by a prefix."""

import secrets

from sqlalchemy import Column, Connection, select

from db.schema import tables
from jobs.errors import AmbiguousId, NotFound

AFTER_ALL = "~"  #: sorts after all characters of ids


def new_job_id(connection: Connection) -> str:
    """Return an id that no job has."""
    while True:
        job = secrets.token_hex(4)
        if connection.scalar(select(tables.jobs.c.id).where(tables.jobs.c.id == job)) is None:
            return job


def task_ids(job: str, count: int) -> list[str]:
    """Return the ids of a job's tasks in the order of its plan, in which they sort too."""
    width = max(2, len(str(count)))
    return [f"{job}-{number:0{width}}" for number in range(1, count + 1)]


def attempt_id(task: str, epoch: int) -> str:
    """Return the id of a task's attempt with an epoch."""
    return f"{task}-{epoch}"


def job_of(task: str) -> str:
    """Return the job of a task."""
    return task.rpartition("-")[0]


def task_of(attempt: str) -> str:
    """Return the task of an attempt."""
    return attempt.rpartition("-")[0]


def epoch_of(attempt: str) -> int:
    """Return the epoch of an attempt; 0 if the text is not an attempt's id."""
    number = attempt.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def find_job(connection: Connection, prefix: str) -> str:
    """Return the only job id with a prefix; raises NotFound, AmbiguousId."""
    return _find(connection, "job", tables.jobs.c.id, prefix)


def find_task(connection: Connection, prefix: str) -> str:
    """Return the only task id with a prefix; raises NotFound, AmbiguousId."""
    return _find(connection, "task", tables.tasks.c.id, prefix)


def find_attempt(connection: Connection, prefix: str) -> str:
    """Return the only attempt id with a prefix; raises NotFound, AmbiguousId."""
    return _find(connection, "attempt", tables.attempts.c.id, prefix)


def find_digest(connection: Connection, prefix: str) -> str:
    """Return the only artifact digest with a prefix; raises NotFound, AmbiguousId."""
    return _find(connection, "artifact", tables.artifacts.c.sha256, prefix)


def _find(connection: Connection, noun: str, column: Column[str], prefix: str) -> str:
    start = prefix.lower()
    if not start.isascii():
        raise NotFound(noun, prefix)
    candidates = select(column).distinct().where(column >= start, column < start + AFTER_ALL).order_by(column).limit(2)
    matches = connection.scalars(candidates).all()
    if not matches:
        raise NotFound(noun, prefix)
    if len(matches) > 1 and matches[0] != start:
        raise AmbiguousId(noun, prefix)
    return matches[0]
