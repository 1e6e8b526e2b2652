"""What happened, in the order of time: changes of tasks' states, and changes of nodes, files and schedules."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, or_, select

from db.connection.engine import Database
from db.schema import tables
from db.schema.ids import find_job
from db.writes.changes import ChangeAction
from jobs.state import ACTIVE, FailureKind

OF_NODES = (
    *(ChangeAction.UP, ChangeAction.DOWN, ChangeAction.DRAIN, ChangeAction.RESUME),
    *(ChangeAction.QUARANTINE, ChangeAction.RELEASE),
)


@dataclass(frozen=True)
class EventRow:
    """One change of a task's state, with its attempt and failure; or a change that moves no task."""

    at: datetime
    job: str | None  #: None: a change that moves no task
    task: str | None  #: None: the submission of a job, or a change that moves no task
    stage: str | None
    subject: str  #: what the task is for, or what was changed: a node, a file, ...
    attempt: str | None  #: that started or ended
    node: str | None  #: of the attempt; a gang's joined by +
    change: str  #: `queued -> running`, `submitted`, `quarantine`, ...
    failure_kind: str | None  #: of the attempt that ended
    failure_message: str | None
    actor: str | None  #: the user who asked for it
    detail: str


@dataclass(frozen=True)
class EventFilter:
    """The events that are wanted; None: all."""

    job: str | None = None  #: a prefix of its id
    node: str | None = None
    since: datetime | None = None
    failure_kinds: Collection[FailureKind] | None = None  #: only attempts that ended so, and changes of nodes
    limit: int | None = None  #: the latest ones


def read_events(database: Database, wanted: EventFilter) -> list[EventRow]:
    """Return events in their order, which clocks don't change, with other changes in between by their times.

    Raises NotFound, AmbiguousId.
    """
    with database.reading() as connection:
        events = [_event(row) for row in connection.execute(_select_events(connection, wanted))]
        changes = [_change(row) for row in connection.execute(_select_changes(connection, wanted))]
    rows = list(merge(reversed(events), reversed(changes), key=lambda row: row.at))
    return rows[-wanted.limit :] if wanted.limit else rows


def _select_events(connection: Connection, wanted: EventFilter) -> Select[Any]:
    events, tasks, attempts = tables.events.c, tables.tasks.c, tables.attempts.c
    conditions: list[ColumnElement[bool]] = []
    if wanted.job is not None:
        conditions.append(events.job == find_job(connection, wanted.job))
    if wanted.node is not None:
        conditions.append(("+" + attempts.node + "+").contains(f"+{wanted.node}+", autoescape=True))
    if wanted.since is not None:
        conditions.append(events.at >= wanted.since)
    if wanted.failure_kinds is not None:
        conditions.append(attempts.failure_kind.in_(sorted(wanted.failure_kinds)))
        conditions.append(events.from_state.in_(sorted(ACTIVE)))
    return (
        select(
            *(events[name] for name in ("at", "job", "task", "attempt", "from_state", "to_state", "actor", "detail")),
            *(tasks.stage, tasks.subject, attempts.node, attempts.failure_kind, attempts.failure_message),
        )
        .outerjoin(tables.tasks, tasks.id == events.task)
        .outerjoin(tables.attempts, attempts.id == events.attempt)
        .where(*conditions)
        .order_by(events.id.desc())
        .limit(wanted.limit)
    )


def _select_changes(connection: Connection, wanted: EventFilter) -> Select[Any]:
    changes = tables.changes.c
    conditions: list[ColumnElement[bool]] = []
    if wanted.job is not None:
        conditions += [changes.action == ChangeAction.PRUNE, changes.subject == find_job(connection, wanted.job)]
    if wanted.node is not None:
        is_device = changes.subject.startswith(f"{wanted.node}/", autoescape=True)
        conditions.append(or_(changes.subject == wanted.node, is_device))
    if wanted.node is not None or wanted.failure_kinds is not None:
        conditions.append(changes.action.in_(sorted(OF_NODES)))
    if wanted.since is not None:
        conditions.append(changes.at >= wanted.since)
    columns = (changes[name] for name in ("at", "actor", "action", "subject", "detail"))
    return select(*columns).where(*conditions).order_by(changes.id.desc()).limit(wanted.limit)


def _event(row: Any) -> EventRow:
    has_ended = row.from_state in ACTIVE
    return EventRow(
        at=row.at,
        job=row.job,
        task=row.task,
        stage=row.stage,
        subject=row.subject or "",
        attempt=row.attempt,
        node=row.node,
        change=f"{row.from_state} -> {row.to_state}" if row.from_state else row.to_state or "submitted",
        failure_kind=row.failure_kind if has_ended else None,
        failure_message=row.failure_message if has_ended else None,
        actor=row.actor,
        detail=row.detail,
    )


def _change(row: Any) -> EventRow:
    return EventRow(
        at=row.at,
        job=None,
        task=None,
        stage=None,
        subject=row.subject,
        attempt=None,
        node=None,
        change=row.action,
        failure_kind=None,
        failure_message=None,
        actor=row.actor,
        detail=row.detail,
    )
