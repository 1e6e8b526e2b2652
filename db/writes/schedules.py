"""Reads and writes of schedules: jobs that the head submits once each time that they are due."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from db.connection.engine import Database
from db.schema import tables
from db.writes import changes
from db.writes.changes import ChangeAction
from db.writes.submission import Submission, insert_job
from jobs.errors import NameTaken, NotFound, NothingToDo
from jobs.plan import Plan
from jobs.stages.base import Model


class IfMissed(StrEnum):
    """What to do about times that passed while no head led."""

    RUN = "run"  #: submit the latest of them late
    SKIP = "skip"  #: submit none


class ScheduleOutcome(StrEnum):
    """The outcome of a time at which a schedule was due."""

    SUBMITTED = "submitted"
    MISSED = "missed"
    FAILED = "failed"  #: the job could no longer be planned


@dataclass(frozen=True)
class Schedule:
    """A job that is submitted again and again, as it was when the schedule was added."""

    name: str
    cron: str
    timezone: str
    file: str
    text: str  #: of the file
    spec: Mapping[str, Any]
    model: Model
    if_missed: IfMissed
    is_paused: bool
    next_at: datetime | None  #: none: it is paused, or never comes again
    added_by: str
    added_at: datetime


@dataclass(frozen=True)
class ScheduleRun:
    """The outcome of one time at which a schedule was due, or of several missed ones in a row."""

    due_at: datetime  #: of several the first
    at: datetime
    outcome: ScheduleOutcome
    count: int = 1
    job: str | None = None
    detail: str = ""


def add(database: Database, schedule: Schedule) -> None:
    """Store a schedule; raises NameTaken."""
    row = {**vars(schedule), "model_facts": asdict(schedule.model)}
    del row["model"]
    with database.writing() as connection:
        if _find(connection, schedule.name) is not None:
            raise NameTaken("schedule", schedule.name, "remove that one, or give --name")
        connection.execute(insert(tables.schedules), [row])
        changes.record(connection, ChangeAction.ADD_SCHEDULE, schedule.name, schedule.cron)


def schedules(database: Database) -> list[Schedule]:
    """Return all schedules, by name."""
    with database.reading() as connection:
        rows = connection.execute(select(tables.schedules).order_by(tables.schedules.c.name))
        return [_schedule(row) for row in rows.mappings()]


def schedule(database: Database, name: str) -> Schedule:
    """Return one schedule; raises NotFound."""
    with database.reading() as connection:
        return _expect(connection, name)


def due(database: Database, now: datetime) -> list[str]:
    """Return the names of the schedules that are due."""
    columns = tables.schedules.c
    query = select(columns.name).where(columns.next_at <= now).order_by(columns.next_at, columns.name)
    with database.reading() as connection:
        return list(connection.scalars(query))


def find_due(database: Database, name: str, now: datetime) -> Schedule | None:
    """Return a schedule if it is due; None if another process has handled or removed it."""
    columns = tables.schedules.c
    query = select(tables.schedules).where(columns.name == name, columns.next_at <= now)
    with database.reading() as connection:
        row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _schedule(row)


def pause_broken(database: Database, name: str, at: datetime, reason: str) -> None:
    """Pause a schedule that can't be read or counted on, and record why, so that it is not due again."""
    run = ScheduleRun(at, at, ScheduleOutcome.FAILED, detail=f"paused: {reason}")
    with database.writing() as connection:
        values = {"is_paused": True, "next_at": None}
        connection.execute(update(tables.schedules).where(tables.schedules.c.name == name).values(**values))
        connection.execute(insert(tables.schedule_runs), [{**vars(run), "schedule": name}])


def runs(database: Database, name: str, limit: int | None = None) -> list[ScheduleRun]:
    """Return the outcomes of a schedule, the latest first."""
    columns = tables.schedule_runs.c
    wanted = [columns[name] for name in ScheduleRun.__dataclass_fields__]
    query = select(*wanted).where(columns.schedule == name).order_by(columns.id.desc()).limit(limit)
    with database.reading() as connection:
        return [
            ScheduleRun(**{**row, "outcome": ScheduleOutcome(row["outcome"])})
            for row in connection.execute(query).mappings()
        ]


def remove(database: Database, name: str) -> None:
    """Delete a schedule and its outcomes; its jobs stay. Raises NotFound."""
    with database.writing() as connection:
        _expect(connection, name)
        connection.execute(delete(tables.schedule_runs).where(tables.schedule_runs.c.schedule == name))
        connection.execute(delete(tables.schedules).where(tables.schedules.c.name == name))
        changes.record(connection, ChangeAction.REMOVE_SCHEDULE, name)


def pause(database: Database, name: str) -> None:
    """Submit nothing until the schedule is resumed; raises NotFound, NothingToDo."""
    _set_paused(database, name, is_paused=True, next_at=None)


def resume(database: Database, name: str, next_at: datetime | None) -> None:
    """Submit again from `next_at` on; raises NotFound, NothingToDo."""
    _set_paused(database, name, is_paused=False, next_at=next_at)


def _set_paused(database: Database, name: str, *, is_paused: bool, next_at: datetime | None) -> None:
    with database.writing() as connection:
        if _expect(connection, name).is_paused == is_paused:
            raise NothingToDo(f"schedule {name} is {'paused already' if is_paused else 'not paused'}")
        values = {"is_paused": is_paused, "next_at": next_at}
        connection.execute(update(tables.schedules).where(tables.schedules.c.name == name).values(**values))
        action = ChangeAction.PAUSE_SCHEDULE if is_paused else ChangeAction.RESUME_SCHEDULE
        changes.record(connection, action, name)


def record_runs(
    database: Database, schedule: Schedule, next_at: datetime | None, due: Sequence[ScheduleRun], plan: Plan | None
) -> list[ScheduleRun]:
    """Store the outcomes of due times, and submit the schedule's job if there is a plan, in one transaction.

    Exactly one of several concurrent callers stores them; one that is killed before the commit leaves the time due.
    Returns what was stored, with the job; nothing if another process was first.
    """
    columns = tables.schedules.c
    still_due = (columns.name == schedule.name, columns.next_at == schedule.next_at)
    with database.writing() as connection:
        if connection.execute(update(tables.schedules).where(*still_due).values(next_at=next_at)).rowcount != 1:
            return []
        job = None if plan is None else _submit(connection, due[-1].at, schedule, plan)
        stored = [replace(run, job=job if run.outcome is ScheduleOutcome.SUBMITTED else None) for run in due]
        connection.execute(insert(tables.schedule_runs), [{**vars(run), "schedule": schedule.name} for run in stored])
    return stored


def _submit(connection: Connection, at: datetime, schedule: Schedule, plan: Plan) -> str:
    spec = schedule.spec
    submission = Submission(
        plan=plan,
        name=spec["name"],
        spec=spec,
        model=schedule.model,
        submitted_by=schedule.added_by,
        timeout_s=spec["timeout"],
        reuse=True,
        priority=spec["priority"],
        job_timeout_s=spec["job_timeout"],
        schedule=schedule.name,
    )
    return insert_job(connection, at, submission)


def _find(connection: Connection, name: str) -> Schedule | None:
    query = select(tables.schedules).where(tables.schedules.c.name == name)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _schedule(row)


def _expect(connection: Connection, name: str) -> Schedule:
    schedule = _find(connection, name)
    if schedule is None:
        raise NotFound("schedule", name)
    return schedule


def _schedule(row: Any) -> Schedule:
    values = {name: value for name, value in row.items() if name != "model_facts"}
    return Schedule(**{**values, "model": Model.of(row["model_facts"]), "if_missed": IfMissed(row["if_missed"])})
