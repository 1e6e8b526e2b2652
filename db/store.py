"""Every write there is, and what the head reads: each change of state is guarded and leaves an event."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from db import attempts, moves, requests, snapshot, submission, tables
from db.engine import Database
from db.ids import attempt_id, new_job_id, task_of
from db.snapshot import Need, OpenTask, RunningAttempt, Snapshot
from jobs.plan import Plan
from jobs.stages.base import Model
from jobs.state import OPEN, Failure, TaskState
from jobs.task import Artifact, Attempt, TaskResult
from jobs.toolchains import Toolchain

__all__ = ["CachedTask", "Need", "OpenTask", "RunningAttempt", "Snapshot", "Store"]


@dataclass(frozen=True)
class CachedTask:
    """An earlier task that succeeded, with what it made."""

    task: str
    attempt: str
    artifacts: tuple[Artifact, ...]


def utc_now() -> datetime:
    """The time, aware."""
    return datetime.now(UTC)


class Store:
    """What may be written. Each method is one transaction; a Conflict means that nothing was changed."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self.database = database
        self._clock = clock

    def submit(
        self,
        plan: Plan,
        *,
        name: str,
        spec: Mapping[str, Any],
        model: Model,
        submitted_by: str,
        timeout_s: float,
        reuse: bool,
    ) -> str:
        """Store a job with all of its tasks and cells; returns its id. `spec` is the job file as JSON values."""
        with self._writing() as (connection, now):
            job = new_job_id(connection)
            row = {
                "id": job,
                "name": name,
                "model": model.name,
                "model_facts": asdict(model),
                "spec": dict(spec),
                "submitted_by": submitted_by,
                "submitted_at": now,
                "timeout_s": timeout_s,
                "reuse": reuse,
            }
            task_rows, cell_rows = submission.rows_of(job, plan)
            connection.execute(insert(tables.jobs).values(**row))
            connection.execute(insert(tables.tasks), task_rows)
            connection.execute(insert(tables.cells), cell_rows)
            connection.execute(insert(tables.events).values(at=now, job=job, detail=f"submitted by {submitted_by}"))
        return job

    def snapshot(self) -> Snapshot:
        """What the head decides from."""
        with self.database.reading() as connection:
            return snapshot.read(connection)

    def queue(self, task: str) -> None:
        """Pending to queued: all that it needs is done."""
        with self._writing() as (connection, now):
            moves.move(connection, now, task, TaskState.PENDING, TaskState.QUEUED)

    def block(self, task: str, reason: str) -> None:
        """Pending to blocked: something that it needs will not be done."""
        with self._writing() as (connection, now):
            moves.move(connection, now, task, TaskState.PENDING, TaskState.BLOCKED, detail=reason, blocked_by=reason)

    def set_waits(self, task: str, reason: str | None, is_stuck: bool) -> None:
        """Say what an open task waits for; leaves no event, and does nothing once the task is not open."""
        columns = tables.tasks.c
        with self._writing() as (connection, _):
            connection.execute(
                update(tables.tasks)
                .where(columns.id == task, columns.state.in_(sorted(OPEN)))
                .values(waits_for=reason, is_stuck=is_stuck)
            )

    def take_over(self, task: str, digest: str, from_task: str) -> None:
        """Queued to cached: the outputs and measurements of `from_task` are this task's too."""
        with self._writing() as (connection, now):
            attempts.take_over(connection, now, task, digest, from_task)

    def start(self, task: OpenTask, attempt: Attempt, toolchain: Toolchain, digest: str) -> None:
        """Queued to running, with a new attempt whose epoch is the task's plus one."""
        with self._writing() as (connection, now):
            attempts.begin(connection, now, task.id, attempt, toolchain, digest)

    def finish(self, result: TaskResult) -> TaskState:
        """Store what came of an attempt; returns the task's new state.

        Succeeded, failed, queued again where the kind of failure is tried again, or cancelled when that was asked for.
        Raises LostRace for an attempt that was given up or is stored already.
        """
        with self._writing() as (connection, now):
            return attempts.end(connection, now, moves.lock(connection, task_of(result.attempt)), result)

    def give_back(self, task: str, epoch: int, failure: Failure) -> TaskState:
        """End an attempt without a result. The task's new state is as for `finish`."""
        return self.finish(TaskResult(attempt_id(task, epoch), epoch, failure))

    def request_cancel(self, name: str) -> list[str]:
        """Cancel what has not ended of a job or one task: what runs becomes cancelling, the rest cancelled at once.

        `name` is an id or the start of one. Returns the ids of the tasks; raises NotFound, NothingToDo.
        """
        with self._writing() as (connection, now):
            return requests.cancel(connection, now, name)

    def retry(self, name: str) -> list[str]:
        """Put what failed, was blocked or cancelled of a job back to pending; or one task with what is tied to it.

        Those are the tasks that it needs, and the ones that need it. Returns the ids; raises NotFound, NothingToDo.
        """
        with self._writing() as (connection, now):
            return requests.retry(connection, now, name)

    def find_cached(self, digest: str) -> CachedTask | None:
        """The newest task that ran with this digest and succeeded."""
        with self.database.reading() as connection:
            found = connection.execute(attempts.succeeded_with(digest).limit(1)).one_or_none()
            return found and CachedTask(found.task, found.id, _artifacts(connection, found.id))

    def outputs(self, task: str) -> tuple[Artifact, ...]:
        """What a done task made or took over, by name."""
        with self.database.reading() as connection:
            attempt = connection.scalar(select(tables.tasks.c.attempt).where(tables.tasks.c.id == task))
            return _artifacts(connection, attempt)

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, datetime]]:
        with self.database.writing() as connection:
            yield connection, self._clock()


def _artifacts(connection: Connection, attempt: str | None) -> tuple[Artifact, ...]:
    columns = tables.artifacts.c
    query = select(columns.name, columns.kind, columns.sha256, columns.size_bytes)
    rows = connection.execute(query.where(columns.attempt == attempt).order_by(columns.name))
    return tuple(Artifact(**row._mapping) for row in rows)
