"""Producers and consumers of artifacts, and which artifacts are still referenced."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, String, cast, func, or_, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from db.schema.ids import find_digest, find_task
from db.schema.imported import DIGEST as IMPORTED
from jobs.errors import NotFound
from jobs.state import ENDED
from jobs.task import Artifact


@dataclass(frozen=True)
class Producer:
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
class Consumer:
    """A task that read a file, or whose cache hit reuses it."""

    job: str
    task: str
    stage: str
    subject: str
    how: str  #: input, or cached


@dataclass(frozen=True)
class ReferencedFiles:
    """The files that must stay in the store."""

    digests: frozenset[str]
    running_since: datetime | None  #: of the attempts under way, the one that began first


def find_artifact(database: Database, reference: str) -> Artifact:
    """Return the artifact named by a prefix of its sha256, or by `TASK/NAME`; raises NotFound, AmbiguousId."""
    with database.reading() as connection:
        return _of_task(connection, reference) if "/" in reference else _of_digest(connection, reference)


def producers(database: Database, sha256: str) -> list[Producer]:
    """Return the attempts that made a file, newest first."""
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
        return [Producer(**row) for row in connection.execute(query).mappings()]


def consumers(database: Database, sha256: str) -> list[Consumer]:
    """Return the tasks that had a file as an input, and those whose cache hit reuses it."""
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
            Consumer(**fields, how=how)
            for query, how in ((read, "input"), (stands, "cached"))
            for fields in connection.execute(query.order_by(tasks.id)).mappings()
        ]


def referenced(database: Database, ended_before: datetime | None = None) -> ReferencedFiles:
    """Return the files that a job, a pin, a result or a running attempt refers to.

    With `ended_before`, jobs that ended before then refer to nothing, but the newest result of each variant and stage
    always refers to its inputs and outputs, whatever its job.
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
    return ReferencedFiles(frozenset(digests), min((row.started_at for row in running), default=None))


def _of_task(connection: Connection, reference: str) -> Artifact:
    artifacts, tasks = tables.artifacts.c, tables.tasks.c
    prefix, _, name = reference.partition("/")
    query = (
        select(tables.artifacts)
        .join(tables.tasks, tasks.attempt == artifacts.attempt)
        .where(tasks.id == find_task(connection, prefix), artifacts.name == name)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound("artifact", reference)
    return _artifact(row)


def _of_digest(connection: Connection, prefix: str) -> Artifact:
    if not prefix:
        raise NotFound("artifact", prefix)
    artifacts = tables.artifacts.c
    matches = select(tables.artifacts).where(artifacts.sha256 == find_digest(connection, prefix))
    return _artifact(connection.execute(matches.order_by(artifacts.attempt).limit(1)).one())


def _artifact(row: Any) -> Artifact:
    return Artifact(row.name, row.kind, row.sha256, row.size_bytes)


def _of_jobs(ended_before: datetime | None) -> Select[tuple[str]]:
    """Select the digests of what jobs made or reused: all jobs, or those that have not ended before a time."""
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
    """Yield the digests of inputs and outputs of the newest success of each variant and stage."""
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
        outputs = select(tables.artifacts.c.sha256).where(tables.artifacts.c.attempt.in_(part))
        yield from connection.scalars(outputs)


def _digests_in(inputs: Any) -> Iterator[str]:
    for stages in inputs:
        for files in stages.values():
            yield from (file["sha256"] for file in files)
