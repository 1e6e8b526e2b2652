"""The writes of attempts: they start, share another task's outputs instead, and end once with all their results."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, func, insert, select

from db.schema import tables
from db.schema.filters import IS_END, among, parts
from db.schema.ids import task_of
from db.schema.values import plain, plain_inputs, plain_places
from db.writes import attempt_results, lost_artifacts, nodes, transitions
from db.writes.attempt_ends import AttemptEnd, FailureHistory, decide
from db.writes.terms import newest
from db.writes.transitions import LockedTask, Transition
from db.writes.usage import weight_of
from jobs.digest import identity
from jobs.exporters import stage_of
from jobs.masking import masked
from jobs.state import ACTIVE, FailureKind, TaskState
from jobs.task import Attempt, TaskResult
from jobs.toolchains import Toolchain


@dataclass(frozen=True)
class NewAttempt:
    """An attempt to start."""

    attempt: Attempt
    toolchain: Toolchain
    digest: str  #: of the task's identity
    term: int | None = None  #: of the leader that starts it


@dataclass(frozen=True)
class CacheHit:
    """A queued task whose outputs an earlier task has made."""

    task: str
    digest: str  #: of the identity that both have
    from_task: str


def start(connection: Connection, at: datetime, new_attempts: Sequence[NewAttempt]) -> set[str]:
    """Move tasks from queued to running, with an attempt's row each; returns the ids of the attempts that start.

    Left out are tasks that moved meanwhile, attempts of a leader of an earlier term, and attempts on nodes or devices
    that were cordoned or quarantined meanwhile.
    """
    by_id = {new.attempt.id: new for new in new_attempts}
    tasks = transitions.lock(connection, [task_of(attempt) for attempt in by_id])
    term = newest(connection)
    usable = nodes.usable(connection, {attempt: new.attempt.places for attempt, new in by_id.items()})
    starting = [
        (task, new)
        for attempt, new in by_id.items()
        if (task := tasks.get(task_of(attempt))) is not None
        and (task.state, task.epoch) == (TaskState.QUEUED, new.attempt.epoch - 1)
        and new.term in (None, term)
        and attempt in usable
    ]
    if starting:
        connection.execute(insert(tables.attempts), [_attempt_row(new, at) for _, new in starting])
        transitions.apply(connection, at, [_to_running(task, new.attempt) for task, new in starting])
    return {new.attempt.id for _, new in starting}


def _to_running(task: LockedTask, attempt: Attempt) -> Transition:
    values = {"epoch": attempt.epoch, "attempt": attempt.id}
    return Transition(task, TaskState.RUNNING, f"on {_node_names(attempt)}", attempt.id, values)


def _node_names(attempt: Attempt) -> str:
    return "+".join(place.node for place in attempt.places)


def _attempt_row(new: NewAttempt, at: datetime) -> dict[str, Any]:
    attempt, toolchain = new.attempt, new.toolchain
    return {
        "id": attempt.id,
        "task": task_of(attempt.id),
        "epoch": attempt.epoch,
        "node": _node_names(attempt),
        "places": plain_places(attempt.places),
        "weight": weight_of(attempt),
        "term": new.term,
        "commands": masked(plain(attempt.commands)),
        "inputs": plain_inputs(attempt.inputs),
        "digest": new.digest,
        "identity": identity(stage_of(attempt.stage, attempt.settings), attempt.settings, toolchain, attempt.inputs),
        "timeout_s": attempt.timeout_s,
        "toolchain": toolchain.name,
        "lock": toolchain.lock,
        "versions": dict(toolchain.versions),
        "host_cpu": toolchain.host_cpu,
        "started_at": at,
        "environment": {},
        "warnings": [],
        "processes": [],
    }


def newest_successes(digests: Sequence[str]) -> Select[tuple[str, str, str]]:
    """Select id, task and digest of the newest attempts that succeeded with these digests, one each."""
    columns, events = tables.attempts.c, tables.events.c
    ends = and_(events.task == columns.task, events.attempt == columns.id, IS_END)
    latest = (
        select(func.max(events.id))
        .join(tables.attempts, ends)
        .where(columns.digest.in_(digests), columns.outcome == "succeeded")
        .group_by(columns.digest)
    )
    return (
        select(columns.id, columns.task, columns.digest)
        .join(tables.events, events.attempt == columns.id)
        .where(events.id.in_(latest))
        .order_by(columns.id)
    )


def record_cache_hits(connection: Connection, at: datetime, hits: Sequence[CacheHit]) -> set[str]:
    """Move tasks from queued to cached; returns those that were queued and whose `from_task` has the outputs."""
    tasks, columns = transitions.lock(connection, [hit.task for hit in hits]), tables.attempts.c
    succeeded: dict[tuple[str, str], str] = {}
    for part in parts(sorted({hit.from_task for hit in hits})):
        query = select(columns.id, columns.task, columns.digest).where(columns.task.in_(part))
        for row in connection.execute(query.where(columns.outcome == "succeeded")):
            succeeded[row.task, row.digest] = row.id
    moves = {
        hit.task: Transition(task, TaskState.CACHED, f"as {hit.from_task}", values={"attempt": attempt})
        for hit in hits
        if (attempt := succeeded.get((hit.from_task, hit.digest)))
        and (task := tasks.get(hit.task))
        and task.state is TaskState.QUEUED
    }
    transitions.apply(connection, at, list(moves.values()))
    return set(moves)


def end(connection: Connection, at: datetime, results: Iterable[TaskResult]) -> dict[str, TaskState]:
    """Store the results of attempts and move their tasks; returns the tasks' new states by attempt.

    Left out are attempts that were given up or are stored already: their tasks have gone on without them.
    """
    by_attempt: dict[str | None, TaskResult] = {}
    for each in results:
        by_attempt.setdefault(each.attempt, each)
    needs = lost_artifacts.needs_of(connection, list(by_attempt.values()))
    ended_tasks = [task_of(result.attempt) for result in by_attempt.values()]
    tasks = transitions.lock(connection, [*ended_tasks, *(need for needed in needs.values() for need in needed)])
    current = [
        (task, result)
        for task in tasks.values()
        if task.state in ACTIVE and (result := by_attempt.get(task.attempt)) and result.epoch == task.epoch
    ]
    ends = _decide(connection, current)
    if ends:
        attempt_results.store(connection, at, ends)
        transitions.apply(connection, at, [_to_end(end) for end in ends])
        losers = [end for end in ends if end.result.lost and end.state is TaskState.QUEUED]
        transitions.apply(connection, at, lost_artifacts.remaking(connection, tasks, needs, losers))
        _drop_logs(connection, sorted(end.result.attempt for end in ends))
        nodes.quarantine(connection, at, [unfit for end in ends for unfit in end.result.unfit])
    return {end.result.attempt: end.state for end in ends}


def _decide(connection: Connection, current: Sequence[tuple[LockedTask, TaskResult]]) -> list[AttemptEnd]:
    """Read what the decisions need, which is nothing for attempts that succeeded, and decide."""
    failed = [(task, result) for task, result in current if result.failure]
    histories = _failure_histories(connection, [task for task, _ in failed])
    orphaned = _orphaned(connection, [result.attempt for _, result in failed])
    return [
        decide(task, result, histories[task.id], is_leader_gone=result.attempt in orphaned) for task, result in current
    ]


def _to_end(end: AttemptEnd) -> Transition:
    failure = end.result.failure
    detail = f"{failure.kind}: {failure.message}" if failure else ""
    return Transition(end.task, end.state, detail, end.result.attempt)


def _orphaned(connection: Connection, attempts: Sequence[str]) -> set[str]:
    """Return the attempts that a leader of an earlier term started."""
    if not attempts:
        return set()
    columns, term = tables.attempts.c, newest(connection)
    orphaned = set()
    for part in parts(sorted(attempts)):
        query = select(columns.id, columns.term).where(columns.id.in_(part))
        orphaned |= {row.id for row in connection.execute(query) if row.term != term}
    return orphaned


def _failure_histories(connection: Connection, tasks: Sequence[LockedTask]) -> Mapping[str, FailureHistory]:
    """Return, by task, how its attempts failed since it was submitted or last retried."""
    columns = tables.attempts.c
    histories: dict[str, FailureHistory] = defaultdict(FailureHistory)
    for part in parts([task.id for task in tasks if task.epoch > task.base_epoch + 1]):
        query = (
            select(columns.task, columns.failure_kind, columns.is_counted, func.count().label("times"))
            .join(tables.tasks, tables.tasks.c.id == columns.task)
            .where(columns.task.in_(part), columns.failure_kind.is_not(None))
            .where(columns.epoch > tables.tasks.c.base_epoch)
            .group_by(columns.task, columns.failure_kind, columns.is_counted)
        )
        for row in connection.execute(query):
            history = histories[row.task]
            counts = history.counted if row.is_counted else history.uncounted
            counts[FailureKind(row.failure_kind)] = row.times
    return histories


_DELETE_LOGS = [delete(table).where(among(table.c.attempt)) for table in (tables.log_chunks, tables.followed_logs)]


def _drop_logs(connection: Connection, ended: Sequence[str]) -> None:
    """Delete the followed logs of attempts that ended: their logs are artifacts now."""
    for part in parts(ended):
        for statement in _DELETE_LOGS:
            connection.execute(statement, {"ids": part})
