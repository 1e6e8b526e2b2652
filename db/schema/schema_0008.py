"""What schema 0008 mended: durations and order without clocks, and results of attempts that were lost or cancelled.

Read by the migration and by the import of databases that an earlier schema exported.
"""

from collections import defaultdict
from itertools import chain
from typing import Any

from sqlalchemy import JSON, Connection, Float, String, column, delete, or_, select, table, text, update

from db.schema.filters import parts

#: Of attempts that ended before they began nothing is known.
DURATIONS_S = {
    "sqlite": "round((julianday(ended_at) - julianday(started_at)) * 86400, 3)",
    "postgresql": "round(extract(epoch FROM ended_at - started_at), 3)",
}

#: Kinds of failures of attempts whose results were kept by mistake, and the outcome of the others.
FAILURE_KINDS = ("input_lost", "internal", "lease_lost", "node_lost", "node_unfit", "out_of_disk", "requeued")
CANCELLED = "cancelled"

ATTEMPTS = table(
    "attempts",
    *(column(name, String) for name in ("id", "outcome", "failure_kind")),
    column("warnings", JSON(none_as_null=True)),
)
MEASUREMENTS = table(
    "measurements", column("attempt", String), column("metric", String), column("unit", String), column("median", Float)
)
ARTIFACTS = table("artifacts", column("attempt", String), column("name", String), column("kind", String))


def mend(connection: Connection) -> None:
    """Fill in the new columns, and take results from attempts that have none."""
    _fill_durations(connection)
    _fill_event_numbers(connection)
    _discard_lost_results(connection)


def _fill_durations(connection: Connection) -> None:
    """Fill in how long attempts took, from times where these are possible."""
    duration_s = DURATIONS_S[connection.dialect.name]
    connection.execute(text(f"UPDATE attempts SET duration_s = {duration_s} WHERE ended_at >= started_at"))


def _fill_event_numbers(connection: Connection) -> None:
    """Fill in when nodes and devices were taken out of use: nothing is known but that it was before now."""
    newest = "(SELECT coalesce(max(id), 0) FROM events)"
    connection.execute(text(f"UPDATE nodes SET cordoned_after = {newest} WHERE cordon IS NOT NULL"))
    connection.execute(text(f"UPDATE devices SET quarantined_after = {newest} WHERE quarantine_reason IS NOT NULL"))


def _discard_lost_results(connection: Connection) -> None:
    """Move the measurements and files of attempts that were lost or cancelled into their warnings; logs stay."""
    is_lost = or_(ATTEMPTS.c.failure_kind.in_(FAILURE_KINDS), ATTEMPTS.c.outcome == CANCELLED)
    measured = (
        select(MEASUREMENTS)
        .join(ATTEMPTS, ATTEMPTS.c.id == MEASUREMENTS.c.attempt)
        .where(is_lost)
        .order_by(MEASUREMENTS.c.attempt, MEASUREMENTS.c.metric)
    )
    made = (
        select(ARTIFACTS)
        .join(ATTEMPTS, ATTEMPTS.c.id == ARTIFACTS.c.attempt)
        .where(is_lost, ARTIFACTS.c.kind != "log")
        .order_by(ARTIFACTS.c.attempt, ARTIFACTS.c.name)
    )
    dropped: dict[str, list[str]] = defaultdict(list)
    for row in chain(connection.execute(measured).all(), connection.execute(made).all()):
        dropped[row.attempt].append(_described(row))
    for attempt, descriptions in dropped.items():
        _warn(connection, attempt, f"it was lost, so this is no result: {', '.join(descriptions)}")
    for part in parts(list(dropped)):
        connection.execute(delete(MEASUREMENTS).where(MEASUREMENTS.c.attempt.in_(part)))
        connection.execute(delete(ARTIFACTS).where(ARTIFACTS.c.attempt.in_(part), ARTIFACTS.c.kind != "log"))


def _described(row: Any) -> str:
    return str(row.name) if "name" in row._mapping else f"{row.metric} {row.median:g} {row.unit}".rstrip()


def _warn(connection: Connection, attempt: str, warning: str) -> None:
    is_it = ATTEMPTS.c.id == attempt
    warnings = connection.execute(select(ATTEMPTS.c.warnings).where(is_it)).scalar_one() or []
    connection.execute(update(ATTEMPTS).where(is_it).values(warnings=[*warnings, warning]))
