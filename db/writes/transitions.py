"""Moving tasks from state to state: each change is compare-and-set under `TRANSITIONS`, and leaves an event."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Update, bindparam, insert, select, update

from db.schema import tables
from db.schema.filters import among, parts
from db.schema.ids import job_of
from jobs.errors import InvalidTransition, LostRace
from jobs.state import DONE, OPEN, TRANSITIONS, Failure, TaskState

#: Reset by each transition: why the task did not move before.
RESET: dict[str, Any] = {"waits_for": None, "is_unschedulable": False, "blocked_by": None, "failure": None}

LOCKED_COLUMNS = ("id", "state", "epoch", "base_epoch", "attempt", "duration_key")

#: Locks rows in the order of their ids, so that two transactions that lock tasks can't deadlock.
SELECT_LOCKED = select(*(tables.tasks.c[name] for name in LOCKED_COLUMNS)).order_by(tables.tasks.c.id).with_for_update()
SELECT_LOCKED_BY_ID = SELECT_LOCKED.where(among(tables.tasks.c.id))
INCREMENT_VERSION = (
    update(tables.jobs).where(tables.jobs.c.id == bindparam("_id")).values(version=tables.jobs.c.version + 1)
)
INSERT_EVENTS = insert(tables.events)

#: Stamps a changed task with the version of its job.
VERSION = {"version": select(tables.jobs.c.version).where(tables.jobs.c.id == tables.tasks.c.job).scalar_subquery()}
UPDATE_WAIT_REASON = (
    update(tables.tasks)
    .where(tables.tasks.c.id == bindparam("_id"))
    .values({"waits_for": bindparam("_waits_for"), "is_unschedulable": bindparam("_is_unschedulable"), **VERSION})
)


@dataclass(frozen=True)
class LockedTask:
    """A task's row, which nobody else changes until the transaction ends."""

    id: str
    state: TaskState
    epoch: int
    base_epoch: int  #: its epoch when it was submitted or last retried
    attempt: str | None
    duration_key: str | None


@dataclass(frozen=True)
class Transition:
    """A move of a task to another state."""

    task: LockedTask
    to: TaskState
    detail: str = ""  #: text of the event
    attempt: str | None = None  #: the attempt that the event is about
    values: Mapping[str, Any] = field(default_factory=dict)  #: other columns of the task to set


Group = tuple[TaskState, TaskState, tuple[str, ...]]  #: from, to, and the names of other columns that are set


def lock(connection: Connection, tasks: Iterable[str]) -> dict[str, LockedTask]:
    """Lock tasks by their ids and read them; unknown ids are left out."""
    locked: dict[str, LockedTask] = {}
    for part in parts(sorted(set(tasks))):
        locked |= {row.id: _locked_task(row) for row in connection.execute(SELECT_LOCKED_BY_ID, {"ids": part})}
    return locked


def lock_where(connection: Connection, condition: ColumnElement[bool]) -> list[LockedTask]:
    """Lock the tasks that fit a condition and read them."""
    return [_locked_task(row) for row in connection.execute(SELECT_LOCKED.where(condition))]


def _locked_task(row: Any) -> LockedTask:
    return LockedTask(row.id, TaskState(row.state), *row[2:])


def apply(connection: Connection, at: datetime, transitions: Sequence[Transition]) -> None:
    """Carry out transitions of locked tasks, with an event each.

    Raises InvalidTransition or LostRace, after which the transaction is to be rolled back.
    """
    groups = group(transitions)
    bump_job_versions(connection, [transition.task.id for transition in transitions])
    for (state, to, names), members in groups.items():
        changed = (
            _update_each(connection, state, to, names, members)
            if names
            else _update_all(connection, state, to, members)
        )
        if changed != len(members):  # can't happen: they are locked
            raise LostRace(", ".join(f"task {member.task.id}" for member in members), to)
    if transitions:
        connection.execute(INSERT_EVENTS, [_event_row(at, transition) for transition in transitions])


def group(transitions: Iterable[Transition]) -> dict[Group, list[Transition]]:
    """Group transitions by the statement that carries them out; raises InvalidTransition."""
    groups: dict[Group, list[Transition]] = defaultdict(list)
    for transition in transitions:
        task = transition.task
        if transition.to not in TRANSITIONS[task.state]:
            raise InvalidTransition(task.id, task.state, transition.to)
        groups[task.state, transition.to, tuple(sorted(transition.values))].append(transition)
    return groups


def set_wait_reasons(connection: Connection, waits: Mapping[str, tuple[str | None, bool]]) -> None:
    """Set what open tasks wait for, and whether the cluster as it is could never run them; others are left alone."""
    tasks = [task.id for task in lock(connection, waits).values() if task.state in OPEN]
    bump_job_versions(connection, tasks)
    if tasks:
        rows = [{"_id": task, "_waits_for": waits[task][0], "_is_unschedulable": waits[task][1]} for task in tasks]
        connection.execute(UPDATE_WAIT_REASON, rows)


def to_failed(task: LockedTask, failure: Failure) -> Transition:
    """Return the transition of a task that fails without an attempt."""
    detail = f"{failure.kind}: {failure.message}"
    return Transition(task, TaskState.FAILED, detail, values={"failure": asdict(failure)})


def bump_job_versions(connection: Connection, tasks: Iterable[str]) -> None:
    """Increment the versions of the tasks' jobs, so that readers who keep what they read read these jobs again.

    Call it after the tasks are locked and before they get `VERSION`: then a later version of a job is committed after
    each earlier one. Jobs are updated in the order of their ids, so that nobody can deadlock.
    """
    jobs = [{"_id": job} for job in sorted({job_of(task) for task in tasks})]
    if jobs:
        connection.execute(INCREMENT_VERSION, jobs)


def _update_all(connection: Connection, state: TaskState, to: TaskState, members: Sequence[Transition]) -> int:
    """Move tasks that change in nothing but their state; returns how many rows matched the guard."""
    statement = _update_all_statement(state, to)
    ids = [member.task.id for member in members]
    return sum(connection.execute(statement, {"ids": part}).rowcount for part in parts(ids))


@cache
def _update_all_statement(state: TaskState, to: TaskState) -> Update:
    columns = tables.tasks.c
    guard = (among(columns.id), columns.state == state)
    return update(tables.tasks).where(*guard).values({"state": to, **_reset(state, to), **VERSION})


def _reset(state: TaskState, to: TaskState) -> dict[str, Any]:
    """Return the columns to reset: why a task was cancelled stays, what it makes again stays until it is made."""
    reset = {name: value for name, value in RESET.items() if (state, name) != (TaskState.CANCELLING, "blocked_by")}
    return reset | {"lost_artifacts": None} if to in DONE else reset


def _update_each(
    connection: Connection, state: TaskState, to: TaskState, names: tuple[str, ...], members: Sequence[Transition]
) -> int:
    """Move tasks that each set other columns too; returns how many rows matched the guard."""
    rows = [
        {"_id": member.task.id, "_epoch": member.task.epoch, **{f"_new_{name}": member.values[name] for name in names}}
        for member in members
    ]
    return connection.execute(_update_each_statement(state, to, names), rows).rowcount


@cache
def _update_each_statement(state: TaskState, to: TaskState, names: tuple[str, ...]) -> Update:
    columns = tables.tasks.c
    guard = (columns.id == bindparam("_id"), columns.epoch == bindparam("_epoch"), columns.state == state)
    values = {name: bindparam(f"_new_{name}", type_=columns[name].type) for name in names}
    return update(tables.tasks).where(*guard).values({"state": to, **_reset(state, to), **values, **VERSION})


def _event_row(at: datetime, transition: Transition) -> dict[str, Any]:
    return {
        "at": at,
        "job": job_of(transition.task.id),
        "task": transition.task.id,
        "attempt": transition.attempt,
        "from_state": transition.task.state,
        "to_state": transition.to,
        "detail": transition.detail,
    }
