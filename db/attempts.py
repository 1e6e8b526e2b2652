"""The life of attempts: begun, and ended once with all that came of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, func, insert, select

from db import losses, moves, nodes, tables
from db.filters import among, parts
from db.ids import task_of
from db.keeping import keep
from db.moves import Found, Move
from db.terms import newest
from db.usage import weight_of
from db.values import plain, plain_inputs, plain_places
from jobs.digest import identity
from jobs.stages import stage_of
from jobs.state import ACTIVE, LOST, LOST_WITH_LEADER_TRIES, FailureKind, TaskState, counts, is_retried
from jobs.task import Attempt, TaskResult
from jobs.toolchains import Toolchain


@dataclass(frozen=True)
class Begun:
    """An attempt that is to begin."""

    attempt: Attempt
    toolchain: Toolchain
    digest: str  #: of what it computes
    term: int | None = None  #: of the leader that begins it


@dataclass(frozen=True)
class TakeOver:
    """A task that is to have another one's outputs."""

    task: str
    digest: str  #: of what both compute
    from_task: str


def begin(connection: Connection, at: datetime, begun: Sequence[Begun]) -> set[str]:
    """Queued to running, with an attempt's row each; returns the attempts of those that were so.

    Left out are those whose task somebody else moved, those that a leader of an earlier term begins, and those on
    what was closed or quarantined since that was decided.
    """
    wanted = {one.attempt.id: one for one in begun}
    held = moves.lock(connection, [task_of(attempt) for attempt in wanted])
    term = newest(connection)
    fit = nodes.fit(connection, {one.attempt.id: one.attempt.places for one in begun})
    going = [
        (found, one)
        for attempt, one in wanted.items()
        if (found := held.get(task_of(attempt))) is not None
        and (found.state, found.epoch) == (TaskState.QUEUED, one.attempt.epoch - 1)
        and one.term in (None, term)
        and one.attempt.id in fit
    ]
    if going:
        connection.execute(insert(tables.attempts), [_begun(one, at) for _, one in going])
        moves.make(connection, at, [_to_running(found, one.attempt) for found, one in going])
    return {one.attempt.id for _, one in going}


def _to_running(found: Found, attempt: Attempt) -> Move:
    values = {"epoch": attempt.epoch, "attempt": attempt.id}
    return Move(found, TaskState.RUNNING, f"on {_node_of(attempt)}", attempt.id, values)


def _node_of(attempt: Attempt) -> str:
    return "+".join(place.node for place in attempt.places)


def _begun(begun: Begun, at: datetime) -> dict[str, Any]:
    attempt, toolchain = begun.attempt, begun.toolchain
    return {
        "id": attempt.id,
        "task": task_of(attempt.id),
        "epoch": attempt.epoch,
        "node": _node_of(attempt),
        "places": plain_places(attempt.places),
        "weight": weight_of(attempt),
        "term": begun.term,
        "commands": plain(attempt.commands),
        "inputs": plain_inputs(attempt.inputs),
        "digest": begun.digest,
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


def newest_with(digests: Sequence[str]) -> Select[tuple[str, str, str]]:
    """Of these digests the newest attempts (id, task, digest) that succeeded; several where they ended together."""
    columns = tables.attempts.c
    succeeded = (columns.digest.in_(digests), columns.outcome == "succeeded")
    latest = (
        select(columns.digest, func.max(columns.ended_at).label("ended_at"))
        .where(*succeeded)
        .group_by(columns.digest)
        .subquery()
    )
    same = and_(latest.c.digest == columns.digest, latest.c.ended_at == columns.ended_at)
    return select(columns.id, columns.task, columns.digest).join(latest, same).where(*succeeded).order_by(columns.id)


def take_over(connection: Connection, at: datetime, wanted: Sequence[TakeOver]) -> set[str]:
    """Queued to cached; returns the tasks that were so and whose `from_task` did succeed with the digest."""
    held, columns = moves.lock(connection, [one.task for one in wanted]), tables.attempts.c
    made: dict[tuple[str, str], str] = {}
    for part in parts(sorted({one.from_task for one in wanted})):
        query = select(columns.id, columns.task, columns.digest).where(columns.task.in_(part))
        for row in connection.execute(query.where(columns.outcome == "succeeded")):
            made[row.task, row.digest] = row.id
    going = {
        one.task: Move(held[one.task], TaskState.CACHED, f"as {one.from_task}", values={"attempt": attempt})
        for one in wanted
        if (attempt := made.get((one.from_task, one.digest)))
        and one.task in held
        and held[one.task].state is TaskState.QUEUED
    }
    moves.make(connection, at, list(going.values()))
    return set(going)


def end(connection: Connection, at: datetime, results: Iterable[TaskResult]) -> dict[str, TaskState]:
    """Store results and move their tasks; returns the tasks' new states by attempt.

    Left out is what was given up or is stored already: the task has gone on without it.
    """
    came: dict[str | None, TaskResult] = {}
    for one in results:
        came.setdefault(one.attempt, one)
    needs = losses.needed_by(connection, list(came.values()))
    locked = [task_of(one.attempt) for one in came.values()] + [need for found in needs.values() for need in found]
    held = moves.lock(connection, locked)
    ending = [
        (found, result)
        for found in held.values()
        if found.state in ACTIVE and (result := came.get(found.attempt)) and result.epoch == found.epoch
    ]
    counted = _counted(connection, [(found, result) for found, result in ending if result.failure])
    earlier = _times(connection, [found for found, result in ending if result.failure])
    with_leader = {
        result.attempt: sum(earlier[found.id, kind, False] for kind in LOST) + 1
        for found, result in ending
        if result.failure and result.failure.kind in LOST and result.attempt not in counted
    }
    ending = [(found, _blamed(result, with_leader.get(result.attempt, 0))) for found, result in ending]
    became: dict[str, TaskState] = {}
    for found, result in ending:
        kind = result.failure.kind if result.failure else None
        times = earlier[found.id, kind, True] + 1 if result.attempt in counted else 0
        became[result.attempt] = ends_as(found.state, kind, times, with_leader.get(result.attempt, 0))
    if ending:
        keep(connection, at, ending, became, counted)
        moves.make(connection, at, [_to_end(found, result, became[result.attempt]) for found, result in ending])
        again = [(found, one) for found, one in ending if one.lost and became[one.attempt] is TaskState.QUEUED]
        losses.send_back(connection, at, held, needs, again)
        _drop_logs(connection, sorted(became))
        nodes.quarantine(connection, at, [unfit for _, result in ending for unfit in result.unfit])
    return became


def _to_end(found: Found, result: TaskResult, became: TaskState) -> Move:
    detail = f"{result.failure.kind}: {result.failure.message}" if result.failure else ""
    return Move(found, became, detail, result.attempt)


def _counted(connection: Connection, failed: Sequence[tuple[Found, TaskResult]]) -> set[str]:
    """The attempts whose failures use up one of their tasks' tries."""
    if not failed:
        return set()
    columns, leader = tables.attempts.c, newest(connection)
    terms: dict[str, int | None] = {}
    for part in parts(sorted(result.attempt for _, result in failed)):
        query = select(columns.id, columns.term).where(columns.id.in_(part))
        terms |= {row.id: row.term for row in connection.execute(query)}
    return {
        result.attempt
        for _, result in failed
        if result.failure and counts(result.failure.kind, is_leader_gone=terms[result.attempt] != leader)
    }


def _times(connection: Connection, tasks: Sequence[Found]) -> Mapping[tuple[str, FailureKind | None, bool], int]:
    """How often attempts have ended so since somebody asked for their tasks: by task, kind and whether it counts."""
    columns, times = tables.attempts.c, Counter[tuple[str, FailureKind | None, bool]]()
    for part in parts([found.id for found in tasks if found.epoch > found.asked_epoch + 1]):
        query = (
            select(columns.task, columns.failure_kind, columns.is_counted, func.count().label("times"))
            .join(tables.tasks, tables.tasks.c.id == columns.task)
            .where(columns.task.in_(part), columns.failure_kind.is_not(None))
            .where(columns.epoch > tables.tasks.c.asked_epoch)
            .group_by(columns.task, columns.failure_kind, columns.is_counted)
        )
        for row in connection.execute(query):
            times[row.task, FailureKind(row.failure_kind), row.is_counted] = row.times
    return times


def _blamed(result: TaskResult, with_leader: int) -> TaskResult:
    """A result whose failure says so where that many of its task's attempts may not be lost with their leaders."""
    if result.failure is None or with_leader < LOST_WITH_LEADER_TRIES:
        return result
    why = f"{with_leader} of its attempts were lost together with whoever led: it may be what ends that machine"
    return replace(result, failure=replace(result.failure, message=f"{result.failure.message}; {why}"))


def ends_as(state: TaskState, kind: FailureKind | None, times: int, with_leader: int = 0) -> TaskState:
    """What becomes of a task whose attempt ends so, for the `times`th time since it was asked for; 0: not counted.

    `with_leader` of its attempts were lost together with their leaders, this one included.
    """
    if state is TaskState.CANCELLING or kind is FailureKind.CANCELLED:
        return TaskState.CANCELLED
    if kind is None:
        return TaskState.SUCCEEDED
    return TaskState.QUEUED if is_retried(kind, times, with_leader) else TaskState.FAILED


_DROPPED = [delete(table).where(among(table.c.attempt)) for table in (tables.log_chunks, tables.followed_logs)]


def _drop_logs(connection: Connection, ended: Sequence[str]) -> None:
    """Their logs are artifacts now."""
    for part in parts(ended):
        for dropped in _DROPPED:
            connection.execute(dropped, {"ids": part})
