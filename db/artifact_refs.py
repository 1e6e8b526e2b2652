"""Who made a file, who uses it, and which files are still pointed to."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, String, cast, func, or_, select

from db import tables
from db.engine import Database
from db.filters import parts
from db.ids import find_digest, find_task
from db.imported import DIGEST as IMPORTED
from jobs.errors import NotFound
from jobs.state import ENDED
from jobs.task import Artifact


@dataclass(frozen=True)
class Maker:
    """An attempt that made a file."""

    job: str
    task: str
    attempt: str
    stage: str
    subject: str
    name: str
    kind: str
    made_at: datetime | None


@dataclass(frozen=True)
class User:
    """A task that read a file, or stands on one that another task made."""

    job: str
    task: str
    stage: str
    subject: str
    how: str  #: input, or cached


@dataclass(frozen=True)
class Kept:
    """What must stay in the store."""

    digests: frozenset[str]
    running_since: datetime | None  #: of the attempts under way, the one that began first


def find(database: Database, given: str) -> Artifact:
    """The file with the one sha256 that starts so, or of the task in `TASK/NAME`; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _of_task(connection, given) if "/" in given else _of_digest(connection, given)


def makers(database: Database, sha256: str) -> list[Maker]:
    """Who made it, the newest first."""
    artifacts, attempts, tasks = tables.artifacts.c, tables.attempts.c, tables.tasks.c
    query = (
        select(
            tasks.job,
            tasks.id.label("task"),
            artifacts.attempt,
            tasks.stage,
            tasks.subject,
            artifacts.name,
            artifacts.kind,
            attempts.ended_at.label("made_at"),
        )
        .join(tables.attempts, attempts.id == artifacts.attempt)
        .join(tables.tasks, tasks.id == attempts.task)
        .where(artifacts.sha256 == sha256)
        .order_by(attempts.ended_at.desc(), artifacts.attempt)
    )
    with database.reading() as connection:
        return [Maker(**row) for row in connection.execute(query).mappings()]


def users(database: Database, sha256: str) -> list[User]:
    """Tasks that had it as an input, and those that stand on what another task made."""
    artifacts, attempts, tasks = tables.artifacts.c, tables.attempts.c, tables.tasks.c
    row = (tasks.job, tasks.id.label("task"), tasks.stage, tasks.subject)
    read = (
        select(*row)
        .join(tables.attempts, attempts.task == tasks.id)
        .where(cast(attempts.inputs, String).contains(sha256))
        .distinct()
    )
    stands = (
        select(*row)
        .join(tables.artifacts, artifacts.attempt == tasks.attempt)
        .join(tables.attempts, attempts.id == artifacts.attempt)
        .where(artifacts.sha256 == sha256, attempts.task != tasks.id)
        .distinct()
    )
    with database.reading() as connection:
        return [
            User(**found, how=how)
            for query, how in ((read, "input"), (stands, "cached"))
            for found in connection.execute(query.order_by(tasks.id)).mappings()
        ]


def kept(database: Database, ended_before: datetime | None = None) -> Kept:
    """What a job, a pin, a result or a running attempt points to.

    With `ended_before` a job that ended before then points to nothing, but each variant's newest result of each stage
    does, whatever its job: to its inputs and to what it made.
    """
    attempts = tables.attempts.c
    with database.reading() as connection:
        running = connection.execute(
            select(attempts.started_at, attempts.inputs).where(attempts.ended_at.is_(None))
        ).all()
        digests = set(connection.scalars(select(tables.pins.c.sha256)))
        digests.update(_digests_in(row.inputs for row in running))
        digests.update(connection.scalars(_of_jobs(ended_before)))
        if ended_before is not None:
            digests.update(_of_newest_results(connection))
    return Kept(frozenset(digests), min((row.started_at for row in running), default=None))


def _of_task(connection: Connection, given: str) -> Artifact:
    artifacts, tasks = tables.artifacts.c, tables.tasks.c
    prefix, _, name = given.partition("/")
    query = (
        select(tables.artifacts)
        .join(tables.tasks, tasks.attempt == artifacts.attempt)
        .where(tasks.id == find_task(connection, prefix), artifacts.name == name)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound("artifact", given)
    return _artifact(row)


def _of_digest(connection: Connection, prefix: str) -> Artifact:
    if not prefix:
        raise NotFound("artifact", prefix)
    artifacts = tables.artifacts.c
    alike = select(tables.artifacts).where(artifacts.sha256 == find_digest(connection, prefix))
    return _artifact(connection.execute(alike.order_by(artifacts.attempt).limit(1)).one())


def _artifact(row: Any) -> Artifact:
    return Artifact(row.name, row.kind, row.sha256, row.size_bytes)


def _of_jobs(ended_before: datetime | None) -> Select[tuple[str]]:
    """Of what jobs made or took over: of all, or of those that have not ended before a time."""
    artifacts, attempts, tasks = tables.artifacts.c, tables.attempts.c, tables.tasks.c
    if ended_before is None:
        return select(artifacts.sha256).distinct()
    open_jobs = select(tasks.job).where(tasks.state.not_in(sorted(ENDED)))
    events = tables.events.c
    lately = select(events.job).group_by(events.job).having(func.max(events.at) >= ended_before)
    return (
        select(artifacts.sha256)
        .join(tables.attempts, attempts.id == artifacts.attempt)
        .join(tables.tasks, or_(tasks.attempt == artifacts.attempt, tasks.id == attempts.task))
        .where(or_(tasks.job.in_(open_jobs), tasks.job.in_(lately)))
        .distinct()
    )


def _of_newest_results(connection: Connection) -> Iterator[str]:
    """What the newest success of each variant and stage made, and was made of."""
    cells, tasks, attempts = tables.cells.c, tables.tasks.c, tables.attempts.c
    where = (cells.variant, cells.target, cells.toolchain, cells.stage)
    query = (
        select(*where, attempts.id)
        .join(tables.tasks, tasks.id == cells.task)
        .join(tables.attempts, attempts.id == tasks.attempt)
        .where(attempts.outcome == "succeeded", attempts.digest.not_like(f"{IMPORTED}%"))
        .order_by(attempts.ended_at)
    )
    newest = {tuple(row[:4]): row[4] for row in connection.execute(query)}
    for part in parts(sorted(set(newest.values()))):
        inputs = select(attempts.inputs).where(attempts.id.in_(part))
        yield from _digests_in(connection.scalars(inputs))
        made = select(tables.artifacts.c.sha256).where(tables.artifacts.c.attempt.in_(part))
        yield from connection.scalars(made)


def _digests_in(inputs: Any) -> Iterator[str]:
    for stages in inputs:
        for files in stages.values():
            yield from (file["sha256"] for file in files)
