"""The front of all writes of jobs, tasks, attempts and nodes, and the snapshot that the scheduler decides from."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock

from sqlalchemy import Connection, select
from sqlalchemy.exc import StatementError

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from db.schema.values import MALFORMED
from db.snapshots.reader import SnapshotReader
from db.snapshots.snapshot import NeededTask, OpenTask, RunningAttempt, Snapshot, UnresolvedToolchain
from db.writes import attempts, changes, logs, nodes, requests, terms, toolchains, transitions
from db.writes.attempts import CacheHit, NewAttempt
from db.writes.changes import ChangeAction
from db.writes.nodes import Cordon
from db.writes.submission import Submission, insert_job
from db.writes.terms import LeaderKind
from db.writes.toolchains import StoredLock
from db.writes.transitions import Transition
from jobs.state import OPEN, Failure, FailureKind, TaskState
from jobs.task import Artifact, LogChunk, Node, TaskResult, Unfit
from jobs.toolchains import Lock as ToolchainLock

__all__ = [
    "UNSTORABLE",
    "CacheHit",
    "CachedTask",
    "Cordon",
    "LeaderKind",
    "NeededTask",
    "NewAttempt",
    "OpenTask",
    "RunningAttempt",
    "Snapshot",
    "Store",
    "StoredLock",
    "Submission",
    "UnresolvedToolchain",
]

#: Raised by a result that can't be stored: it names an unknown metric, holds no number, or holds a file twice.
UNSTORABLE = (StatementError, *MALFORMED)


@dataclass(frozen=True)
class CachedTask:
    """An earlier task that succeeded, with its outputs."""

    task: str
    attempt: str
    artifacts: tuple[Artifact, ...]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Store:
    """Writes to a database; each method is one transaction.

    Methods that take many items treat each by itself; the result leaves out those that another process moved first.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self.database = database
        self._clock = clock
        self._reader = SnapshotReader()
        self._reading = Lock()

    def start_term(self, kind: LeaderKind, host: str, pid: int) -> int:
        """Start a term and return its number; attempts that leaders of earlier terms start from now on are refused."""
        with self._writing() as (connection, now):
            return terms.begin(connection, now, kind, host, pid)

    def end_term(self, term: int) -> None:
        """Record that the leader of a term has stopped."""
        with self._writing() as (connection, now):
            terms.end(connection, now, term)

    def submit(self, submission: Submission) -> str:
        """Store a job with all of its tasks and cells; returns its id."""
        with self._writing() as (connection, now):
            return insert_job(connection, now, submission)

    def snapshot(self) -> Snapshot:
        """Return what the scheduler decides from; cheap when little changed since this store's last snapshot."""
        with self._reading, self.database.reading() as connection:
            return self._reader.read(connection, self._clock())

    def queue(self, tasks: Iterable[str]) -> set[str]:
        """Move tasks whose needs are done from pending to queued; returns those that were pending."""
        return self._move(dict.fromkeys(tasks, ""), TaskState.QUEUED)

    def unqueue(self, tasks: Iterable[str]) -> set[str]:
        """Move tasks one of whose needs runs again from queued to pending; returns those that were queued."""
        details = dict.fromkeys(tasks, "a task that it needs runs again")
        return self._move(details, TaskState.PENDING, expected=TaskState.QUEUED)

    def block(self, reasons: Mapping[str, str]) -> set[str]:
        """Move tasks, each with the reason, from pending to blocked; returns those that were pending."""
        return self._move(reasons, TaskState.BLOCKED)

    def fail(self, failures: Mapping[str, Failure]) -> set[str]:
        """Move open tasks, each with why it can't run at all, to failed; returns those that were open."""
        with self._writing() as (connection, now):
            tasks = [task for task in transitions.lock(connection, failures).values() if task.state in OPEN]
            transitions.apply(connection, now, [transitions.to_failed(task, failures[task.id]) for task in tasks])
        return {task.id for task in tasks}

    def _move(self, details: Mapping[str, str], to: TaskState, *, expected: TaskState = TaskState.PENDING) -> set[str]:
        with self._writing() as (connection, now):
            tasks = [task for task in transitions.lock(connection, details).values() if task.state is expected]
            values = {task.id: {"blocked_by": details[task.id]} if to is TaskState.BLOCKED else {} for task in tasks}
            moves = [Transition(task, to, details[task.id], values=values[task.id]) for task in tasks]
            transitions.apply(connection, now, moves)
        return {task.id for task in tasks}

    def set_wait_reasons(self, waits: Mapping[str, tuple[str | None, bool]]) -> None:
        """Set why open tasks wait, and whether the cluster as it is could never run them.

        Leaves no event; tasks that are no longer open are left alone.
        """
        with self._polling() as (connection, _):
            transitions.set_wait_reasons(connection, waits)

    def record_cache_hits(self, hits: Sequence[CacheHit]) -> set[str]:
        """Move queued tasks to cached, each with the outputs and measurements of its `from_task`; returns them."""
        with self._writing() as (connection, now):
            return attempts.record_cache_hits(connection, now, hits)

    def start(self, new_attempts: Sequence[NewAttempt]) -> set[str]:
        """Move tasks from queued to running, each with a new attempt of the next epoch; returns the attempts.

        Also left out are attempts of a leader of an earlier term, and attempts on nodes or devices that were cordoned
        or quarantined meanwhile.
        """
        with self._writing() as (connection, now):
            return attempts.start(connection, now, new_attempts)

    def finish(self, results: Sequence[TaskResult]) -> dict[str, TaskState]:
        """Store the results of attempts; returns the tasks' new states by attempt.

        A task becomes succeeded, failed, queued again if its kind of failure is retried, or cancelled if that was
        requested. Attempts that were given up or are stored already are left out. A result that can't be stored is
        stored as an internal failure, and does not keep the others from being stored.
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
        """Cancel the open tasks of jobs whose time limit has passed; returns these jobs."""
        with self.database.reading() as connection:
            if not requests.due(connection, self._clock()):
                return []
        with self._writing() as (connection, now):
            return requests.expire(connection, now)

    def request_cancel(self, name: str) -> list[str]:
        """Cancel a job or one task: running tasks become cancelling, open ones cancelled at once.

        `name` is an id or the start of one. Returns the ids of the tasks; raises NotFound, NothingToDo.
        """
        with self._writing() as (connection, now):
            return requests.cancel(connection, now, name)

    def retry(self, name: str) -> list[str]:
        """Put failed, blocked and cancelled tasks back to pending: all of a job, or one with those connected to it.

        Connected are the tasks that it needs and the tasks that need it. Returns the ids; raises NotFound, NothingToDo.
        """
        with self._writing() as (connection, now):
            return requests.retry(connection, now, name)

    def record_nodes(self, up: Sequence[Node], not_ready: Mapping[str, str] | None = None) -> None:
        """Record the nodes that are up and their devices; all other nodes are down.

        `not_ready` gives the reason for each of them that takes no task now.
        """
        with self._polling() as (connection, now):
            nodes.record(connection, now, up, not_ready or {})

    def cordon_node(self, name: str, cordon: Cordon, reason: str) -> None:
        """Let nothing new start on a node; raises NotFound."""
        with self.database.writing() as connection:
            nodes.lock(connection, [name])
            nodes.cordon(connection, self._clock(), name, cordon, reason)
            changes.record(connection, ChangeAction.DRAIN, name, reason)

    def uncordon_node(self, name: str) -> None:
        """Let tasks start on a node again; raises NotFound."""
        with self._writing() as (connection, _):
            nodes.uncordon(connection, name)
            changes.record(connection, ChangeAction.RESUME, name)

    def quarantine(self, unfit: Sequence[Unfit]) -> None:
        """Take nodes and devices out of use until they are released; unknown ones are ignored."""
        with self.database.writing() as connection:
            nodes.lock(connection, [each.node for each in unfit])
            nodes.quarantine(connection, self._clock(), unfit)

    def release(self, node: str, kind: str, index: int | None = None) -> None:
        """End the quarantine of a device, of all of a kind without `index`, or of the node if `kind` is empty.

        Raises NotFound.
        """
        with self._writing() as (connection, _):
            nodes.release(connection, node, kind, index)
            device = f"/{kind}" + ("" if index is None else f":{index}") if kind else ""
            changes.record(connection, ChangeAction.RELEASE, node + device)

    def record_lock(self, lock: ToolchainLock, instead_of: str | None) -> StoredLock:
        """Make a lock the current one of its toolchain's name, and return the current one.

        Nothing changes if the current one is not the one with the digest `instead_of`: another process was first.
        """
        with self._writing() as (connection, now):
            return toolchains.record_lock(connection, now, lock, instead_of)

    def record_compiler_flags(self, flags: Mapping[str, Collection[str]]) -> None:
        """Record the flags of the locks' compilers, by the digests of the locks."""
        with self._writing() as (connection, _):
            toolchains.record_compiler_flags(connection, flags)

    def follow_log(self, attempt: str, for_s: float) -> None:
        """Have the head fetch the log of a running attempt for so many seconds."""
        with self._polling() as (connection, now):
            logs.follow(connection, now, attempt, for_s)

    def followed(self) -> list[str]:
        """Return the attempts whose logs are to be fetched."""
        with self.database.reading() as connection:
            return logs.followed(connection, self._clock())

    def add_log_chunks(self, chunks: Sequence[LogChunk]) -> None:
        """Store fetched parts of logs, except those of attempts that have ended."""
        with self._polling() as (connection, _):
            logs.add(connection, chunks)

    def find_all_cached(self, digests: Collection[str]) -> dict[str, CachedTask]:
        """Return, by digest, the newest task that succeeded with it."""
        newest: dict[str, tuple[str, str]] = {}
        with self.database.reading() as connection:
            for part in parts(sorted(set(digests))):
                for row in connection.execute(attempts.newest_successes(part)):
                    newest.setdefault(row.digest, (row.task, row.id))
            artifacts = _artifacts(connection, [attempt for _, attempt in newest.values()])
        return {digest: CachedTask(task, attempt, artifacts[attempt]) for digest, (task, attempt) in newest.items()}

    def outputs(self, task: str) -> tuple[Artifact, ...]:
        """Return a done task's outputs, by name, also those from a cache hit."""
        return self.all_outputs([task]).get(task, ())

    def all_outputs(self, tasks: Collection[str]) -> dict[str, tuple[Artifact, ...]]:
        """Return the outputs of done tasks, each task's by name."""
        columns = tables.tasks.c
        attempt_by_task: dict[str, str] = {}
        with self.database.reading() as connection:
            for part in parts(sorted(set(tasks))):
                rows = connection.execute(select(columns.id, columns.attempt).where(columns.id.in_(part)))
                attempt_by_task |= {row.id: row.attempt for row in rows if row.attempt}
            artifacts = _artifacts(connection, list(attempt_by_task.values()))
        return {task: artifacts[attempt] for task, attempt in attempt_by_task.items()}

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, datetime]]:
        with self.database.writing() as connection:
            yield connection, self._clock()

    @contextmanager
    def _polling(self) -> Iterator[tuple[Connection, datetime]]:
        """A transaction for what is written again soon anyway."""
        with self.database.writing(survives_power_cut=False) as connection:
            yield connection, self._clock()


def _artifacts(connection: Connection, attempts: Collection[str]) -> dict[str, tuple[Artifact, ...]]:
    """Return the artifacts of attempts, each attempt's by name."""
    columns = tables.artifacts.c
    artifacts: dict[str, list[Artifact]] = {attempt: [] for attempt in attempts}
    for part in parts(sorted(artifacts)):
        rows = select(tables.artifacts).where(columns.attempt.in_(part)).order_by(columns.attempt, columns.name)
        for row in connection.execute(rows):
            artifacts[row.attempt].append(Artifact(row.name, row.kind, row.sha256, row.size_bytes))
    return {attempt: tuple(files) for attempt, files in artifacts.items()}


def _unstorable(result: TaskResult, error: Exception) -> TaskResult:
    reason = f"its result can't be stored: {error}".splitlines()[0]
    return TaskResult(result.attempt, result.epoch, Failure(FailureKind.INTERNAL, reason))
