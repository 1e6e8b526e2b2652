"""Every write there is, and what the head reads: each change of state is guarded and leaves an event."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import StatementError

from db import attempts, logs, moves, nodes, requests, submission, tables, terms, toolchains
from db.attempts import Begun, TakeOver
from db.engine import Database
from db.filters import parts
from db.nodes import Closed
from db.reader import SnapshotReader
from db.snapshot import Need, OpenTask, RunningAttempt, Snapshot, Unresolved
from db.terms import LeaderKind
from db.toolchains import KeptLock
from jobs.plan import Plan
from jobs.stages.base import Model
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Artifact, LogChunk, Node, TaskResult, Unfit
from jobs.toolchains import Lock as ToolchainLock

__all__ = [
    "Begun",
    "CachedTask",
    "Closed",
    "KeptLock",
    "LeaderKind",
    "Need",
    "OpenTask",
    "RunningAttempt",
    "Snapshot",
    "Store",
    "TakeOver",
    "Unresolved",
]

#: What a result raises that no database takes: it names no metric, holds no number, or holds a file twice.
UNSTORABLE = (StatementError, LookupError, TypeError, ValueError)


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
    """What may be written. Each method is one transaction.

    Those that take many take each by itself: what somebody else moved first is left out of what they return.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self.database = database
        self._clock = clock
        self._reader = SnapshotReader()
        self._reading = Lock()

    def begin_term(self, kind: LeaderKind, host: str, pid: int) -> int:
        """Lead from now on: what earlier leaders begin after this is refused."""
        with self._writing() as (connection, now):
            return terms.begin(connection, now, kind, host, pid)

    def end_term(self, term: int) -> None:
        """Lead no more."""
        with self._writing() as (connection, now):
            terms.end(connection, now, term)

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
        reuse_measurements: bool = False,
        priority: int = 0,
        job_timeout_s: float | None = None,
    ) -> str:
        """Store a job with all of its tasks and cells; returns its id. `spec` is the job file as JSON values.

        An attempt may take `timeout_s`, the whole job `job_timeout_s`. With `reuse` what earlier tasks computed may be
        taken over, but for measurements; with `reuse_measurements` these too.
        """
        with self._writing() as (connection, now):
            return submission.submit(
                connection,
                now,
                plan,
                name=name,
                spec=spec,
                model=model,
                submitted_by=submitted_by,
                timeout_s=timeout_s,
                reuse=reuse,
                reuse_measurements=reuse_measurements,
                priority=priority,
                job_timeout_s=job_timeout_s,
            )

    def snapshot(self) -> Snapshot:
        """What the head decides from; cheap when little has changed since this store's last one."""
        with self._reading, self.database.reading() as connection:
            return self._reader.read(connection, self._clock())

    def queue(self, tasks: Iterable[str]) -> set[str]:
        """Pending to queued: all that they need is done. Returns those that were pending."""
        return self._move_on(dict.fromkeys(tasks, ""), TaskState.QUEUED)

    def unqueue(self, tasks: Iterable[str]) -> set[str]:
        """Queued to pending: something that they need is made again. Returns those that were queued."""
        details = dict.fromkeys(tasks, "something that it needs is made again")
        return self._move_on(details, TaskState.PENDING, was=TaskState.QUEUED)

    def block(self, reasons: Mapping[str, str]) -> set[str]:
        """Pending to blocked, by task with what it needs and will not get. Returns those that were pending."""
        return self._move_on(reasons, TaskState.BLOCKED)

    def fail(self, failures: Mapping[str, Failure]) -> set[str]:
        """Queued to failed, by task with why it can't be run at all. Returns those that were queued."""
        with self._writing() as (connection, now):
            queued = [one for one in moves.lock(connection, failures).values() if one.state is TaskState.QUEUED]
            moves.make(connection, now, [moves.failed(one, failures[one.id]) for one in queued])
            return {one.id for one in queued}

    def _move_on(self, details: Mapping[str, str], to: TaskState, was: TaskState = TaskState.PENDING) -> set[str]:
        with self._writing() as (connection, now):
            found = [one for one in moves.lock(connection, details).values() if one.state is was]
            reason = {one.id: {"blocked_by": details[one.id]} for one in found} if to is TaskState.BLOCKED else {}
            made = [moves.Move(one, to, details[one.id], values=reason.get(one.id, {})) for one in found]
            moves.make(connection, now, made)
            return {one.id for one in found}

    def set_waits(self, waits: Mapping[str, tuple[str | None, bool]]) -> None:
        """Say what open tasks wait for, and whether nothing that runs could change that.

        Leaves no event, and does nothing to a task that is not open any more.
        """
        with self._writing() as (connection, _):
            moves.set_waits(connection, waits)

    def take_over(self, wanted: Sequence[TakeOver]) -> set[str]:
        """Queued to cached: the outputs and measurements of `from_task` are the task's too. Returns the tasks."""
        with self._writing() as (connection, now):
            return attempts.take_over(connection, now, wanted)

    def start(self, begun: Sequence[Begun]) -> set[str]:
        """Queued to running, each with a new attempt whose epoch is the task's plus one; returns the attempts.

        Left out, beside what somebody else moved, is what an earlier term's leader begins, and what would run on
        something that was closed or quarantined meanwhile.
        """
        with self._writing() as (connection, now):
            return attempts.begin(connection, now, begun)

    def finish(self, results: Sequence[TaskResult]) -> dict[str, TaskState]:
        """Store what came of attempts; returns the tasks' new states by attempt.

        Succeeded, failed, queued again where the kind of failure is tried again, or cancelled when that was asked for.
        Attempts that were given up or are stored already are left out. A result that no database takes is stored as
        a bug of ours, and keeps no other from being stored.
        """
        try:
            with self._writing() as (connection, now):
                return attempts.end(connection, now, results)
        except UNSTORABLE as error:
            if len(results) == 1:
                with self._writing() as (connection, now):
                    return attempts.end(connection, now, [_unstorable(results[0], error)])
        return {attempt: state for result in results for attempt, state in self.finish([result]).items()}

    def expire_jobs(self) -> list[str]:
        """Cancel what is left of jobs whose time is over; returns them."""
        with self.database.reading() as connection:
            if not requests.due(connection, self._clock()):
                return []
        with self._writing() as (connection, now):
            return requests.expire(connection, now)

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

    def see_nodes(self, found: Sequence[Node], refusing: Mapping[str, str] | None = None) -> None:
        """Remember nodes and their devices as they describe themselves; all others are down.

        `refusing` are those of them that take nothing now, each with the reason.
        """
        with self._writing() as (connection, now):
            nodes.see(connection, now, found, refusing or {})

    def close_node(self, name: str, how: Closed, why: str) -> None:
        """Have nothing new started on a node; raises NotFound."""
        with self.database.writing() as connection:
            nodes.hold(connection, [name])
            nodes.close(connection, self._clock(), name, how, why)

    def open_node(self, name: str) -> None:
        """Let a node be used again; raises NotFound."""
        with self._writing() as (connection, _):
            nodes.open_again(connection, name)

    def quarantine(self, unfit: Sequence[Unfit]) -> None:
        """Take nodes and devices out of use until they are released; those that nobody has seen are ignored."""
        with self.database.writing() as connection:
            nodes.hold(connection, [one.node for one in unfit])
            nodes.quarantine(connection, self._clock(), unfit)

    def release(self, node: str, kind: str, index: int | None = None) -> None:
        """Use a device again; all of a kind without `index`, the node itself where `kind` is empty. Raises NotFound."""
        with self._writing() as (connection, _):
            nodes.release(connection, node, kind, index)

    def keep_lock(self, lock: ToolchainLock, instead_of: str | None) -> KeptLock:
        """Have a toolchain's name stand for a lock, unless it stands for another than `instead_of`, a digest, by now;
        returns what it stands for."""
        with self._writing() as (connection, now):
            return toolchains.keep(connection, now, lock, instead_of)

    def keep_compiler_flags(self, flags: Mapping[str, Collection[str]]) -> None:
        """Remember what the compilers of locks offer, by digest."""
        with self._writing() as (connection, _):
            toolchains.keep_flags(connection, flags)

    def follow_log(self, attempt: str, for_s: float) -> None:
        """Have the log of an attempt that runs fetched for so long."""
        with self._writing() as (connection, now):
            logs.follow(connection, now, attempt, for_s)

    def followed(self) -> list[str]:
        """The attempts whose logs are to be fetched."""
        with self.database.reading() as connection:
            return logs.followed(connection, self._clock())

    def add_log_chunks(self, chunks: Sequence[LogChunk]) -> None:
        """Keep what was fetched of logs; nothing of attempts that have ended."""
        with self._writing() as (connection, _):
            logs.add(connection, chunks)

    def find_all_cached(self, digests: Collection[str]) -> dict[str, CachedTask]:
        """By digest, the newest task that ran with it and succeeded."""
        newest: dict[str, tuple[str, str]] = {}
        with self.database.reading() as connection:
            for part in parts(sorted(set(digests))):
                for row in connection.execute(attempts.newest_with(part)):
                    newest.setdefault(row.digest, (row.task, row.id))
            made = _artifacts(connection, [attempt for _, attempt in newest.values()])
        return {digest: CachedTask(task, attempt, made[attempt]) for digest, (task, attempt) in newest.items()}

    def outputs(self, task: str) -> tuple[Artifact, ...]:
        """What a done task made or took over, by name."""
        return self.all_outputs([task]).get(task, ())

    def all_outputs(self, tasks: Collection[str]) -> dict[str, tuple[Artifact, ...]]:
        """By task, what it made or took over, by name."""
        columns = tables.tasks.c
        made_by: dict[str, str] = {}
        with self.database.reading() as connection:
            for part in parts(sorted(set(tasks))):
                rows = connection.execute(select(columns.id, columns.attempt).where(columns.id.in_(part)))
                made_by |= {row.id: row.attempt for row in rows if row.attempt}
            made = _artifacts(connection, list(made_by.values()))
        return {task: made[attempt] for task, attempt in made_by.items()}

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, datetime]]:
        with self.database.writing() as connection:
            yield connection, self._clock()


def _artifacts(connection: Connection, attempts: Collection[str]) -> dict[str, tuple[Artifact, ...]]:
    """By attempt, what it made, by name."""
    columns = tables.artifacts.c
    found: dict[str, list[Artifact]] = {attempt: [] for attempt in attempts}
    for part in parts(sorted(found)):
        rows = select(tables.artifacts).where(columns.attempt.in_(part)).order_by(columns.attempt, columns.name)
        for row in connection.execute(rows):
            found[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
    return {attempt: tuple(files) for attempt, files in found.items()}


def _unstorable(result: TaskResult, error: Exception) -> TaskResult:
    reason = f"its result can't be stored: {error}".splitlines()[0]
    return TaskResult(result.attempt, result.epoch, Failure(FailureKind.INTERNAL, reason))
