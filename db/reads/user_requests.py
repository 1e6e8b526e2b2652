"""Who submitted, cancelled and retried a job, from its events."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, or_, select

from db.connection.engine import Database
from db.schema import tables
from db.writes.requests import REQUESTED, RETRIED

#: What a user did, by the detail of the events that it left.
REQUESTS = {REQUESTED: "cancelled", RETRIED: "retried"}
SUBMITTED = "submitted"


@dataclass(frozen=True)
class UserRequest:
    """What a user asked for, with the tasks that it moved."""

    at: datetime
    request: str  #: submitted, cancelled or retried
    actor: str | None  #: the user of the process; none: not known
    database_user: str | None  #: the user of the database's session; none: SQLite has no users, or not known
    tasks: int


def user_requests(database: Database, job: str, task: str | None = None) -> list[UserRequest]:
    """Return the requests about a job, or those that moved one of its tasks, oldest first; both are whole ids."""
    events = tables.events.c
    by = (events.at, events.detail, events.actor, events.database_user, events.task.is_(None).label("is_submission"))
    query = (
        select(*by, func.count().label("tasks"))
        .where(events.job == job, or_(events.task.is_(None), events.detail.in_(REQUESTS)))
        .group_by(*by)
        .order_by(func.min(events.id))
    )
    if task is not None:
        query = query.where(or_(events.task == task, events.task.is_(None)))
    with database.reading() as connection:
        return [
            UserRequest(
                row.at,
                SUBMITTED if row.is_submission else REQUESTS[row.detail],
                row.actor,
                row.database_user,
                0 if row.is_submission else row.tasks,
            )
            for row in connection.execute(query)
        ]
