"""The results of attempts as rows: how they ended, their artifacts, their measurements and their durations."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from statistics import median
from typing import Any

from sqlalchemy import Connection, Update, bindparam, insert, select, update

from db.schema import tables
from db.schema.filters import among, parts
from db.schema.values import plain
from db.writes.attempt_ends import AttemptEnd
from jobs.masking import masked
from jobs.metrics import METRICS
from jobs.state import TaskState
from jobs.task import Measurement

#: The outcome of an attempt, by the new state of its task.
OUTCOMES = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.QUEUED: "failed",
    TaskState.CANCELLED: "cancelled",
}

LOG = "log"  #: the kind of the file that every attempt leaves
RECENT = 5  #: how many durations are kept of each key


def store(connection: Connection, at: datetime, ends: Sequence[AttemptEnd]) -> None:
    """Store the results of attempts; of those without results only their logs."""
    _update_attempts(connection, at, ends)
    artifacts = [
        {"attempt": end.result.attempt, **row}
        for end in ends
        for row in plain(end.result.artifacts)
        if end.has_results or row["kind"] == LOG
    ]
    if artifacts:
        connection.execute(insert(tables.artifacts), artifacts)
    measurements = [
        _measurement_row(end.result.attempt, measurement)
        for end in ends
        if end.has_results
        for measurement in end.result.measurements
    ]
    if measurements:
        connection.execute(insert(tables.measurements), measurements)
    _record_durations(connection, [end for end in ends if end.state is TaskState.SUCCEEDED])


def _update_attempts(connection: Connection, at: datetime, ends: Sequence[AttemptEnd]) -> None:
    """Update the attempts' rows, with one statement for those that set the same columns."""
    groups: dict[frozenset[str], list[dict[str, Any]]] = defaultdict(list)
    for end in ends:
        values = _end_values(at, end)
        groups[frozenset(values)].append(
            {"_id": end.result.attempt, **{f"_{name}": value for name, value in values.items()}}
        )
    for names, rows in groups.items():
        connection.execute(_update_statement(names), rows)


@cache
def _update_statement(names: frozenset[str]) -> Update:
    columns = {name: bindparam(f"_{name}", type_=tables.attempts.c[name].type) for name in names}
    return update(tables.attempts).where(tables.attempts.c.id == bindparam("_id")).values(columns)


def _end_values(at: datetime, end: AttemptEnd) -> dict[str, Any]:
    result, failure = end.result, end.result.failure
    values: dict[str, Any] = {
        "ended_at": at,
        "duration_s": result.duration_s,
        "outcome": OUTCOMES[end.state],
        "failure_kind": failure and failure.kind,
        "failure_message": failure and failure.message,
        "is_counted": end.is_counted if failure else None,
        "log_tail": failure and failure.log_tail,
        "warnings": list(result.warnings),
        "processes": masked(plain(result.processes)),
        "environment": masked(dict(result.environment)),
    }
    if result.versions:  # the versions that it ran under replace those that were expected
        values["versions"] = dict(result.versions)
    return values


def _measurement_row(attempt: str, measurement: Measurement) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "metric": measurement.metric,
        "unit": METRICS[measurement.metric].unit,
        "median": median(measurement.samples),
        "samples": list(measurement.samples),
        "batch": measurement.context.get("batch"),
        "prompt_tokens": measurement.context.get("prompt_tokens"),
        "context": dict(measurement.context),
    }


_SELECT_DURATIONS = select(tables.durations).where(among(tables.durations.c.duration_key))
_RECENT_S = bindparam("_recent_s", type_=tables.durations.c.recent_s.type)
_INSERT_DURATIONS = insert(tables.durations).values(duration_key=bindparam("_duration_key"), recent_s=_RECENT_S)
_UPDATE_DURATIONS = (
    update(tables.durations)
    .where(tables.durations.c.duration_key == bindparam("_duration_key"))
    .values(recent_s=_RECENT_S)
)


def _record_durations(connection: Connection, ends: Sequence[AttemptEnd]) -> None:
    """Record how long attempts took that succeeded; the scheduler estimates from it how long similar tasks take."""
    new_s: dict[str, list[float]] = defaultdict(list)
    for end in ends:
        if end.task.duration_key and end.result.duration_s is not None:
            new_s[end.task.duration_key].append(end.result.duration_s)
    known_s: dict[str, list[float]] = {}
    for part in parts(sorted(new_s)):
        known_s |= recent_durations(connection, part)
    rows = merge_durations(known_s, new_s)
    for statement, keys in ((_INSERT_DURATIONS, rows.keys() - known_s), (_UPDATE_DURATIONS, rows.keys() & known_s)):
        if keys:
            connection.execute(statement, [{"_duration_key": key, "_recent_s": rows[key]} for key in sorted(keys)])


def merge_durations(
    known_s: Mapping[str, Sequence[float]], new_s: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Return, for each key with new durations, the latest of all, oldest first."""
    return {key: [*known_s.get(key, ()), *seconds][-RECENT:] for key, seconds in new_s.items()}


def recent_durations(connection: Connection, keys: Sequence[str]) -> dict[str, list[float]]:
    """Return, by duration key, how many seconds the latest attempts took that succeeded, oldest first."""
    return {row.duration_key: row.recent_s for row in connection.execute(_SELECT_DURATIONS, {"ids": keys})}
