"""Samples of attempts, and which attempts measured the same thing before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from db.connection.engine import Database
from db.reads.identities import SUCCEEDED
from db.schema import tables
from db.schema.values import places_of
from jobs.task import Place


@dataclass(frozen=True)
class StoredMeasurement:
    """One metric of an attempt in one workload."""

    metric: str
    unit: str
    batch: int | None
    prompt_tokens: int | None
    median: float
    samples: tuple[float, ...]
    context: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, int | None, int | None, str | None]:
        """The key that comparable measurements share."""
        return self.metric, self.batch, self.prompt_tokens, self.context.get("evaluation")


def measurements_of(database: Database, attempt: str) -> list[StoredMeasurement]:
    """Return the measurements of an attempt, by its whole id, in the order in which they were made."""
    with database.reading() as connection:
        return _measured(connection, attempt)


def earlier_measurements(
    database: Database, digest: str, places: tuple[Place, ...]
) -> dict[str, list[StoredMeasurement]]:
    """Return, by attempt, oldest first, the measurements of successes with the same digest in the same places."""
    attempts = tables.attempts.c
    query = select(attempts.id, attempts.places).where(attempts.digest == digest, attempts.outcome == SUCCEEDED)
    with database.reading() as connection:
        rows = connection.execute(query.order_by(attempts.started_at)).all()
        attempt_ids = [row.id for row in rows if places_of(row.places) == places]
        return {attempt: _measured(connection, attempt) for attempt in attempt_ids}


def _measured(connection: Connection, attempt: str) -> list[StoredMeasurement]:
    columns = tables.measurements.c
    query = select(tables.measurements).where(columns.attempt == attempt).order_by(columns.id)
    return [
        StoredMeasurement(
            row.metric, row.unit, row.batch, row.prompt_tokens, row.median, tuple(row.samples), row.context
        )
        for row in connection.execute(query)
    ]
