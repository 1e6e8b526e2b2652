"""Schedules: jobs that a head submits when they are due, each time once."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from db import submission, tables
from db.engine import Database
from jobs.errors import NameTaken, NotFound, NothingToDo
from jobs.plan import Plan
from jobs.stages.base import Model


class IfMissed(StrEnum):
    """What is done about times that passed while no head led."""

    RUN = "run"  #: the latest of them is submitted late
    SKIP = "skip"  #: none is


class Outcome(StrEnum):
    """What came of a time that a schedule was due."""

    SUBMITTED = "submitted"
    MISSED = "missed"
    FAILED = "failed"  #: the job could not be planned any more


@dataclass(frozen=True)
class Schedule:
    """A job that is submitted again and again, as it was when it was added."""

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
class Run:
    """What came of a time that a schedule was due, or of several that were missed in a row."""

    due_at: datetime  #: of several the first
    at: datetime
    outcome: Outcome
    count: int = 1
    job: str | None = None
    detail: str = ""


def add(database: Database, schedule: Schedule) -> None:
    """Keep a schedule; raises NameTaken."""
    row = {**vars(schedule), "model_facts": asdict(schedule.model)}
    del row["model"]
    with database.writing() as connection:
        if _find(connection, schedule.name) is not None:
            raise NameTaken("schedule", schedule.name, "remove that one, or give --name")
        connection.execute(insert(tables.schedules), [row])


def schedules(database: Database) -> list[Schedule]:
    """All of them, by name."""
    with database.reading() as connection:
        rows = connection.execute(select(tables.schedules).order_by(tables.schedules.c.name))
        return [_schedule(row) for row in rows.mappings()]


def schedule(database: Database, name: str) -> Schedule:
    """One of them; raises NotFound."""
    with database.reading() as connection:
        return _expect(connection, name)


def due(database: Database, now: datetime) -> list[Schedule]:
    """Those whose time has come."""
    columns = tables.schedules.c
    query = select(tables.schedules).where(columns.next_at <= now).order_by(columns.next_at, columns.name)
    with database.reading() as connection:
        return [_schedule(row) for row in connection.execute(query).mappings()]


def runs(database: Database, name: str, limit: int | None = None) -> list[Run]:
    """What came of a schedule, the latest first."""
    columns = tables.schedule_runs.c
    wanted = [columns[name] for name in Run.__dataclass_fields__]
    query = select(*wanted).where(columns.schedule == name).order_by(columns.id.desc()).limit(limit)
    with database.reading() as connection:
        return [Run(**{**row, "outcome": Outcome(row["outcome"])}) for row in connection.execute(query).mappings()]


def remove(database: Database, name: str) -> None:
    """Forget a schedule and what came of it; its jobs stay. Raises NotFound."""
    with database.writing() as connection:
        _expect(connection, name)
        connection.execute(delete(tables.schedule_runs).where(tables.schedule_runs.c.schedule == name))
        connection.execute(delete(tables.schedules).where(tables.schedules.c.name == name))


def pause(database: Database, name: str) -> None:
    """Submit nothing of it until it is resumed; raises NotFound, NothingToDo."""
    _set_paused(database, name, is_paused=True, next_at=None)


def resume(database: Database, name: str, next_at: datetime | None) -> None:
    """Submit it again, from `next_at` on; raises NotFound, NothingToDo."""
    _set_paused(database, name, is_paused=False, next_at=next_at)


def _set_paused(database: Database, name: str, *, is_paused: bool, next_at: datetime | None) -> None:
    with database.writing() as connection:
        if _expect(connection, name).is_paused == is_paused:
            raise NothingToDo(f"schedule {name} is {'paused already' if is_paused else 'not paused'}")
        values = {"is_paused": is_paused, "next_at": next_at}
        connection.execute(update(tables.schedules).where(tables.schedules.c.name == name).values(**values))


def come(
    database: Database, found: Schedule, next_at: datetime | None, came: Sequence[Run], plan: Plan | None
) -> list[Run]:
    """Store what came of times that a schedule was due, and submit its job where there is a plan: all or nothing.

    Once, whoever else does so at the same time, and however often somebody is killed before: then nothing was stored,
    and the time is still due. Returns what was stored, with the job; nothing where somebody else was quicker.
    """
    columns = tables.schedules.c
    still_due = (columns.name == found.name, columns.next_at == found.next_at)
    with database.writing() as connection:
        if connection.execute(update(tables.schedules).where(*still_due).values(next_at=next_at)).rowcount != 1:
            return []
        job = None if plan is None else _submit(connection, came[-1].at, found, plan)
        stored = [replace(run, job=job if run.outcome is Outcome.SUBMITTED else None) for run in came]
        connection.execute(insert(tables.schedule_runs), [{**vars(run), "schedule": found.name} for run in stored])
    return stored


def _submit(connection: Connection, at: datetime, found: Schedule, plan: Plan) -> str:
    spec = found.spec
    return submission.submit(
        connection,
        at,
        plan,
        name=spec["name"],
        spec=spec,
        model=found.model,
        submitted_by=found.added_by,
        timeout_s=spec["timeout"],
        reuse=True,
        priority=spec["priority"],
        job_timeout_s=spec["job_timeout"],
        schedule=found.name,
    )


def _find(connection: Connection, name: str) -> Schedule | None:
    query = select(tables.schedules).where(tables.schedules.c.name == name)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _schedule(row)


def _expect(connection: Connection, name: str) -> Schedule:
    found = _find(connection, name)
    if found is None:
        raise NotFound("schedule", name)
    return found


def _schedule(row: Any) -> Schedule:
    values = {name: value for name, value in row.items() if name != "model_facts"}
    return Schedule(**{**values, "model": Model.of(row["model_facts"]), "if_missed": IfMissed(row["if_missed"])})
