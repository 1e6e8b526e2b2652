"""How tasks move from state to state: compare-and-set under the one table of transitions, an event for each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, insert, select, update

from db import tables
from db.filters import parts
from db.ids import job_of
from jobs.errors import InvalidTransition, LostRace
from jobs.state import TRANSITIONS, TaskState

#: What a task leaves behind when it moves: why it did not move before.
FRESH: dict[str, Any] = {"waits_for": None, "is_stuck": False, "blocked_by": None}


@dataclass(frozen=True)
class Found:
    """A task as it is, kept so until the transaction ends."""

    id: str
    state: TaskState
    epoch: int
    asked_epoch: int  #: its epoch when it was submitted or last retried
    attempt: str | None
    likeness: str | None


@dataclass(frozen=True)
class Move:
    """Where a task goes from the state that it was found in."""

    found: Found
    to: TaskState
    detail: str = ""
    attempt: str | None = None  #: that the event is about
    values: Mapping[str, Any] = field(default_factory=dict)  #: other columns of the task


def lock(connection: Connection, tasks: Iterable[str]) -> dict[str, Found]:
    """Read tasks by their ids and keep others from moving them; unknown ids are left out."""
    held: dict[str, Found] = {}
    for part in parts(sorted(set(tasks))):
        held |= {found.id: found for found in lock_all(connection, tables.tasks.c.id.in_(part))}
    return held


def lock_all(connection: Connection, condition: ColumnElement[bool]) -> list[Found]:
    """Read tasks and keep others from moving them; in the order of their ids, so that two callers can't deadlock."""
    columns = tables.tasks.c
    query = select(
        columns.id, columns.state, columns.epoch, columns.asked_epoch, columns.attempt, columns.likeness
    ).where(condition)
    rows = connection.execute(query.order_by(columns.id).with_for_update())
    return [Found(row.id, TaskState(row.state), *row[2:]) for row in rows]


def make(connection: Connection, at: datetime, moves: Sequence[Move]) -> None:
    """Move tasks that are locked, with an event each; raises LostRace or InvalidTransition, and nothing is changed."""
    alike: dict[tuple[TaskState, TaskState, tuple[str, ...]], list[Move]] = defaultdict(list)
    for move in moves:
        if move.to not in TRANSITIONS[move.found.state]:
            raise InvalidTransition(move.found.id, move.found.state, move.to)
        alike[move.found.state, move.to, tuple(sorted(move.values))].append(move)
    for (was, to, names), group in alike.items():
        changed = _change_each(connection, was, to, names, group) if names else _change_all(connection, was, to, group)
        if changed != len(group):  # it can't be: they are locked
            raise LostRace(", ".join(f"task {move.found.id}" for move in group), to)
    touch(connection, [move.found.id for move in moves])
    _note(connection, at, moves)


def touch(connection: Connection, tasks: Iterable[str]) -> None:
    """Have those who keep what they read of the tasks' jobs read it again; in order, so that nobody can deadlock."""
    columns = tables.jobs.c
    jobs = [{"_id": job} for job in sorted({job_of(task) for task in tasks})]
    if jobs:
        changed = update(tables.jobs).where(columns.id == bindparam("_id")).values(version=columns.version + 1)
        connection.execute(changed, jobs)


def _change_all(connection: Connection, was: TaskState, to: TaskState, moves: Sequence[Move]) -> int:
    """The guarded update, for tasks that change in nothing else; returns how many it found."""
    columns = tables.tasks.c
    return sum(
        connection.execute(
            update(tables.tasks)
            .where(columns.id.in_(part), columns.state == was)
            .values({"state": to, **_left_behind(was)})
        ).rowcount
        for part in parts([move.found.id for move in moves])
    )


def _left_behind(was: TaskState) -> dict[str, Any]:
    """Of what a task said: why it is cancelled stays true to the end."""
    return {name: value for name, value in FRESH.items() if (was, name) != (TaskState.CANCELLING, "blocked_by")}


def _change_each(
    connection: Connection, was: TaskState, to: TaskState, names: Sequence[str], moves: Sequence[Move]
) -> int:
    """The guarded update, for tasks that each change in their own way; returns how many it found."""
    columns = tables.tasks.c
    guard = (columns.id == bindparam("_id"), columns.epoch == bindparam("_epoch"), columns.state == was)
    values = {"state": to, **_left_behind(was), **{name: bindparam(f"_{name}_now") for name in names}}
    rows = [
        {"_id": move.found.id, "_epoch": move.found.epoch, **{f"_{name}_now": move.values[name] for name in names}}
        for move in moves
    ]
    return connection.execute(update(tables.tasks).where(*guard).values(values), rows).rowcount


def _note(connection: Connection, at: datetime, moves: Sequence[Move]) -> None:
    """Leave an event for each."""
    rows = [
        {
            "at": at,
            "job": job_of(move.found.id),
            "task": move.found.id,
            "attempt": move.attempt,
            "was": move.found.state,
            "became": move.to,
            "detail": move.detail,
        }
        for move in moves
    ]
    if rows:
        connection.execute(insert(tables.events), rows)
