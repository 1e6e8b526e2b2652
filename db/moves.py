"""How tasks move from state to state: compare-and-set under the one table of transitions, an event for each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Update, bindparam, insert, select, update

from db import tables
from db.filters import among, parts
from db.ids import job_of
from jobs.errors import InvalidTransition, LostRace
from jobs.state import DONE, OPEN, TRANSITIONS, Failure, TaskState

#: What a task leaves behind when it moves: why it did not move before.
FRESH: dict[str, Any] = {"waits_for": None, "is_stuck": False, "blocked_by": None, "failure": None}


#: In the order of their ids, so that two who lock tasks can't deadlock.
LOCKED = (
    select(*(tables.tasks.c[name] for name in ("id", "state", "epoch", "asked_epoch", "attempt", "likeness")))
    .order_by(tables.tasks.c.id)
    .with_for_update()
)
LOCKED_BY_ID = LOCKED.where(among(tables.tasks.c.id))
TOUCHED = update(tables.jobs).where(tables.jobs.c.id == bindparam("_id")).values(version=tables.jobs.c.version + 1)
NOTED = insert(tables.events)

#: What a change of a task leaves in it: which version of the job came of it.
VERSION = {"version": select(tables.jobs.c.version).where(tables.jobs.c.id == tables.tasks.c.job).scalar_subquery()}
WAITING = (
    update(tables.tasks)
    .where(tables.tasks.c.id == bindparam("_id"))
    .values({"waits_for": bindparam("_for"), "is_stuck": bindparam("_is_stuck"), **VERSION})
)


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
        held |= {row.id: _found(row) for row in connection.execute(LOCKED_BY_ID, {"ids": part})}
    return held


def lock_all(connection: Connection, condition: ColumnElement[bool]) -> list[Found]:
    """Read tasks and keep others from moving them."""
    return [_found(row) for row in connection.execute(LOCKED.where(condition))]


def _found(row: Any) -> Found:
    return Found(row.id, TaskState(row.state), *row[2:])


def make(connection: Connection, at: datetime, moves: Sequence[Move]) -> None:
    """Move tasks that are locked, with an event each; raises LostRace or InvalidTransition, and nothing is changed."""
    alike: dict[tuple[TaskState, TaskState, tuple[str, ...]], list[Move]] = defaultdict(list)
    for move in moves:
        if move.to not in TRANSITIONS[move.found.state]:
            raise InvalidTransition(move.found.id, move.found.state, move.to)
        alike[move.found.state, move.to, tuple(sorted(move.values))].append(move)
    touch(connection, [move.found.id for move in moves])
    for (was, to, names), group in alike.items():
        changed = _change_each(connection, was, to, names, group) if names else _change_all(connection, was, to, group)
        if changed != len(group):  # it can't be: they are locked
            raise LostRace(", ".join(f"task {move.found.id}" for move in group), to)
    _note(connection, at, moves)


def set_waits(connection: Connection, waits: Mapping[str, tuple[str | None, bool]]) -> None:
    """Say what open tasks wait for, and whether nothing that runs could change that."""
    held = [found.id for found in lock(connection, waits).values() if found.state in OPEN]
    touch(connection, held)
    if held:
        connection.execute(WAITING, [{"_id": one, "_for": waits[one][0], "_is_stuck": waits[one][1]} for one in held])


def failed(found: Found, failure: Failure) -> Move:
    """A task fails without an attempt that could say why."""
    return Move(found, TaskState.FAILED, f"{failure.kind}: {failure.message}", values={"failure": asdict(failure)})


def touch(connection: Connection, tasks: Iterable[str]) -> None:
    """Have those who keep what they read of the tasks' jobs read it again; in order, so that nobody can deadlock.

    To be done when the tasks are locked, and before they get what is in `VERSION`: then each later version of a job is
    committed after each earlier one.
    """
    jobs = [{"_id": job} for job in sorted({job_of(task) for task in tasks})]
    if jobs:
        connection.execute(TOUCHED, jobs)


def _change_all(connection: Connection, was: TaskState, to: TaskState, moves: Sequence[Move]) -> int:
    """The guarded update, for tasks that change in nothing else; returns how many it found."""
    changed = _changed_all(was, to)
    ids = [move.found.id for move in moves]
    return sum(connection.execute(changed, {"ids": part}).rowcount for part in parts(ids))


@cache
def _changed_all(was: TaskState, to: TaskState) -> Update:
    columns = tables.tasks.c
    guard = (among(columns.id), columns.state == was)
    return update(tables.tasks).where(*guard).values({"state": to, **_left_behind(was, to), **VERSION})


def _left_behind(was: TaskState, to: TaskState) -> dict[str, Any]:
    """Of what a task said: why it is cancelled stays true to the end, what it makes again until that is made."""
    left = {name: value for name, value in FRESH.items() if (was, name) != (TaskState.CANCELLING, "blocked_by")}
    return left | {"lost": None} if to in DONE else left


def _change_each(
    connection: Connection, was: TaskState, to: TaskState, names: tuple[str, ...], moves: Sequence[Move]
) -> int:
    """The guarded update, for tasks that each change in their own way; returns how many it found."""
    rows = [
        {"_id": move.found.id, "_epoch": move.found.epoch, **{f"_{name}_now": move.values[name] for name in names}}
        for move in moves
    ]
    return connection.execute(_changed_each(was, to, names), rows).rowcount


@cache
def _changed_each(was: TaskState, to: TaskState, names: tuple[str, ...]) -> Update:
    columns = tables.tasks.c
    guard = (columns.id == bindparam("_id"), columns.epoch == bindparam("_epoch"), columns.state == was)
    given = {name: bindparam(f"_{name}_now", type_=columns[name].type) for name in names}
    return update(tables.tasks).where(*guard).values({"state": to, **_left_behind(was, to), **given, **VERSION})


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
        connection.execute(NOTED, rows)
