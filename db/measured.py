"""Samples of attempts, and which attempts measured the same thing before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from db import tables
from db.engine import Database
from db.identities import SUCCEEDED
from db.values import places_of
from jobs.task import Place


@dataclass(frozen=True)
class Measured:
    """One metric of an attempt in one workload."""

    metric: str
    unit: str
    batch: int | None
    prompt_tokens: int | None
    median: float
    samples: tuple[float, ...]
    context: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, int | None, int | None]:
        """Equal for what can be compared."""
        return self.metric, self.batch, self.prompt_tokens


def measured(database: Database, attempt: str) -> list[Measured]:
    """What an attempt, by its whole id, measured; in its order."""
    with database.reading() as connection:
        return _measured(connection, attempt)


def measured_before(database: Database, digest: str, places: tuple[Place, ...]) -> dict[str, list[Measured]]:
    """By attempt, what succeeded with a digest in the very same places, oldest first."""
    attempts = tables.attempts.c
    query = select(attempts.id, attempts.places).where(attempts.digest == digest, attempts.outcome == SUCCEEDED)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(attempts.started_at)).all()
        alike = [row.id for row in rows if places_of(row.places) == places]
        return {attempt: _measured(connection, attempt) for attempt in alike}


def _measured(connection: Connection, attempt: str) -> list[Measured]:
    columns = tables.measurements.c
    query = select(tables.measurements).where(columns.attempt == attempt).order_by(columns.id)
    return [
        Measured(row.metric, row.unit, row.batch, row.prompt_tokens, row.median, tuple(row.samples), row.context)
        for row in connection.execute(query)
    ]
