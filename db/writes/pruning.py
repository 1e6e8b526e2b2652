"""Pruning: jobs that ended long ago keep their results, and lose what nobody asks for any more.

What stays of a job: itself, its tasks, cells, attempts, files and measurements; who submitted, cancelled and retried
it; and the events that end attempts which succeeded, by whose order the newest result is found. What goes: all other
events, and the log's end of each attempt that another one replaced. A row in `changes` says so for each job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, update

from db.connection.engine import Database
from db.schema import tables
from db.schema.filters import parts
from db.writes import changes
from db.writes.changes import ChangeAction
from db.writes.requests import REQUESTED, RETRIED
from jobs.state import ENDED, TaskState

AT_ONCE = 50  #: jobs in one transaction, so that a head is not kept waiting
OF_NODES = (ChangeAction.UP, ChangeAction.DOWN)


@dataclass(frozen=True)
class PrunedRows:
    """What was dropped, or would be."""

    jobs: int = 0
    events: int = 0
    log_tails: int = 0
    node_changes: int = 0

    def __add__(self, other: "PrunedRows") -> "PrunedRows":
        return PrunedRows(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def pruned_jobs() -> Select[tuple[str]]:
    """Select the ids of the jobs that were pruned."""
    return select(tables.changes.c.subject).where(tables.changes.c.action == ChangeAction.PRUNE)


def find_prunable(database: Database, before: datetime) -> tuple[list[str], PrunedRows]:
    """Return the jobs that ended before a time and have anything to drop, and what that is."""
    rows, jobs = PrunedRows(), list[str]()
    with database.reading() as connection:
        for part in parts(_ended(connection, before)):
            events, tails = _events_by_job(connection, part), _tails_by_job(connection, part)
            jobs += sorted(events.keys() | tails.keys())
            rows += PrunedRows(0, sum(events.values()), sum(tails.values()))
        count = connection.scalar(select(func.count()).select_from(tables.changes).where(*_old_changes(before)))
    return jobs, rows + PrunedRows(len(jobs), node_changes=count or 0)


def prune(database: Database, jobs: Sequence[str], before: datetime, archive: str) -> PrunedRows:
    """Drop what goes of these jobs, unless they were retried meanwhile, and old ups and downs of nodes.

    `archive` names the file that still has all of it.
    """
    pruned = PrunedRows()
    for start in range(0, len(jobs), AT_ONCE):
        with database.writing() as connection:
            pruned += _prune_jobs(connection, jobs[start : start + AT_ONCE], before, archive)
    with database.writing() as connection:
        count = connection.execute(delete(tables.changes).where(*_old_changes(before))).rowcount
    return pruned + PrunedRows(node_changes=count)


def _prune_jobs(connection: Connection, jobs: Sequence[str], before: datetime, archive: str) -> PrunedRows:
    job = tables.jobs.c.id
    connection.execute(select(job).where(job.in_(jobs)).order_by(job).with_for_update())  # nobody retries them now
    ended = _ended(connection, before, jobs)
    events, tails = _events_by_job(connection, ended), _tails_by_job(connection, ended)
    connection.execute(delete(tables.events).where(tables.events.c.job.in_(ended), *_droppable()))
    replaced = select(tables.attempts.c.id).join(tables.tasks, _is_replaced()).where(tables.tasks.c.job.in_(ended))
    connection.execute(update(tables.attempts).where(tables.attempts.c.id.in_(replaced)).values(log_tail=None))
    pruned = sorted(events.keys() | tails.keys())
    for name in pruned:
        detail = f"{events.get(name, 0)} events; all of them are in {archive}"
        changes.record(connection, ChangeAction.PRUNE, name, detail)
    return PrunedRows(len(pruned), sum(events.values()), sum(tails.values()))


def _ended(connection: Connection, before: datetime, jobs: Sequence[str] | None = None) -> list[str]:
    """Return the jobs, of all or of these, of which nothing is to be done and whose last event was before a time."""
    events, tasks = tables.events.c, tables.tasks.c
    unfinished = select(tasks.job).where(tasks.state.not_in(sorted(ENDED)))
    query = select(events.job).where(events.job.not_in(unfinished))
    query = query if jobs is None else query.where(events.job.in_(jobs))
    return list(connection.scalars(query.group_by(events.job).having(func.max(events.at) < before)))


def _events_by_job(connection: Connection, jobs: Sequence[str]) -> dict[str, int]:
    job = tables.events.c.job
    query = select(job, func.count()).where(job.in_(jobs), *_droppable()).group_by(job)
    return {row[0]: row[1] for row in connection.execute(query)}


def _tails_by_job(connection: Connection, jobs: Sequence[str]) -> dict[str, int]:
    job = tables.tasks.c.job
    query = select(job, func.count()).join(tables.attempts, _is_replaced()).where(job.in_(jobs))
    query = query.where(tables.attempts.c.log_tail != "").group_by(job)
    return {row[0]: row[1] for row in connection.execute(query)}


def _droppable() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of events that go; the newest one stays, for numbers are not given twice."""
    events = tables.events.c
    newest = select(func.max(events.id)).scalar_subquery()
    return (
        events.task.is_not(None),
        events.detail.not_in((REQUESTED, RETRIED)),
        events.to_state != TaskState.SUCCEEDED,
        events.id != newest,
    )


def _is_replaced() -> ColumnElement[bool]:
    """Return the condition that an attempt is a task's, and not the one that the task stands on."""
    tasks, attempts = tables.tasks.c, tables.attempts.c
    return (attempts.task == tasks.id) & (attempts.id != func.coalesce(tasks.attempt, ""))


def _old_changes(before: datetime) -> tuple[ColumnElement[bool], ...]:
    columns = tables.changes.c
    newest = select(func.max(columns.id)).scalar_subquery()
    return columns.action.in_(OF_NODES), columns.at < before, columns.id != newest
