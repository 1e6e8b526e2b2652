"""How tasks move from state to state: compare-and-set under the one table of transitions, an event for each."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from db import tables
from db.ids import job_of
from jobs.errors import InvalidTransition, LostRace, NotFound
from jobs.state import TRANSITIONS, TaskState

#: What a task leaves behind when it moves: why it did not move before.
FRESH: dict[str, Any] = {"waits_for": None, "is_stuck": False, "blocked_by": None}


@dataclass(frozen=True)
class Found:
    """A task as it is, kept so until the transaction ends."""

    id: str
    state: TaskState
    epoch: int
    tries: int
    attempt: str | None


def lock(connection: Connection, task: str) -> Found:
    """Read a task and keep others from moving it."""
    held = lock_all(connection, tables.tasks.c.id == task)
    if not held:
        raise NotFound("task", task)
    return held[0]


def lock_all(connection: Connection, condition: Any) -> list[Found]:
    """Read tasks and keep others from moving them; in the order of their ids, so that two callers can't deadlock."""
    columns = tables.tasks.c
    query = select(columns.id, columns.state, columns.epoch, columns.tries, columns.attempt).where(condition)
    rows = connection.execute(query.order_by(columns.id).with_for_update())
    return [Found(row.id, TaskState(row.state), row.epoch, row.tries, row.attempt) for row in rows]


def move(
    connection: Connection,
    at: datetime,
    task: str,
    expected: TaskState,
    to: TaskState,
    *,
    detail: str = "",
    **values: Any,
) -> None:
    """Move a task that is as expected, with an event; raises LostRace or InvalidTransition and changes nothing."""
    change(connection, task, expected, to, **values)
    note(connection, at, task, expected, to, detail)


def change(
    connection: Connection, task: str, expected: TaskState, to: TaskState, *, at_epoch: int | None = None, **values: Any
) -> None:
    """The guarded update alone: for what has to write something else before its event."""
    if to not in TRANSITIONS[expected]:
        raise InvalidTransition(task, expected, to)
    columns = tables.tasks.c
    guard = [columns.id == task, columns.state == expected]
    if at_epoch is not None:
        guard.append(columns.epoch == at_epoch)
    if connection.execute(update(tables.tasks).where(*guard).values(state=to, **FRESH | values)).rowcount != 1:
        raise _why_lost(connection, task, to)


def _why_lost(connection: Connection, task: str, to: TaskState) -> NotFound | InvalidTransition | LostRace:
    state = connection.scalar(select(tables.tasks.c.state).where(tables.tasks.c.id == task))
    if state is None:
        return NotFound("task", task)
    return LostRace(f"task {task}", to) if to in TRANSITIONS[TaskState(state)] else InvalidTransition(task, state, to)


def note(
    connection: Connection,
    at: datetime,
    task: str,
    was: TaskState | None,
    became: TaskState,
    detail: str = "",
    attempt: str | None = None,
) -> None:
    """Leave an event."""
    row = {"at": at, "job": job_of(task), "task": task, "attempt": attempt, "was": was, "became": became}
    connection.execute(insert(tables.events).values(**row, detail=detail))
