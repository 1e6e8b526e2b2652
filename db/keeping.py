"""What attempts came to, as rows: how they ended, their files, their numbers, how long they took."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from db import tables
from db.filters import parts
from db.moves import Found
from db.values import plain
from jobs.metrics import METRICS
from jobs.state import TaskState
from jobs.task import Measurement, TaskResult

Ending = Sequence[tuple[Found, TaskResult]]

#: What an attempt came to, by what became of its task.
OUTCOMES = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.QUEUED: "failed",
    TaskState.CANCELLED: "cancelled",
}

RECENT = 5  #: how many durations are remembered


def keep(
    connection: Connection,
    at: datetime,
    ending: Ending,
    became: Mapping[str, TaskState],
    counted: Collection[str],
) -> None:
    """Store the results of attempts. A cancelled one leaves no numbers."""
    results = [result for _, result in ending]
    _close(connection, at, results, became, counted)
    files = [{"attempt": result.attempt, **row} for result in results for row in plain(result.artifacts)]
    if files:
        connection.execute(insert(tables.artifacts), files)
    numbers = [
        _number(result.attempt, measurement)
        for result in results
        if became[result.attempt] is not TaskState.CANCELLED
        for measurement in result.measurements
    ]
    if numbers:
        connection.execute(insert(tables.measurements), numbers)
    _remember(connection, at, [pair for pair in ending if became[pair[1].attempt] is TaskState.SUCCEEDED])


def _close(
    connection: Connection,
    at: datetime,
    results: Sequence[TaskResult],
    became: Mapping[str, TaskState],
    counted: Collection[str],
) -> None:
    alike: dict[frozenset[str], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        values = _closed(at, result, OUTCOMES[became[result.attempt]], result.attempt in counted)
        alike[frozenset(values)].append(
            {"_id": result.attempt, **{f"_{name}": value for name, value in values.items()}}
        )
    for names, rows in alike.items():
        columns = {name: bindparam(f"_{name}", type_=tables.attempts.c[name].type) for name in names}
        connection.execute(
            update(tables.attempts).where(tables.attempts.c.id == bindparam("_id")).values(columns), rows
        )


def _closed(at: datetime, result: TaskResult, outcome: str, is_counted: bool) -> dict[str, Any]:
    failure = result.failure
    values: dict[str, Any] = {
        "ended_at": at,
        "outcome": outcome,
        "failure_kind": failure and failure.kind,
        "failure_message": failure and failure.message,
        "is_counted": is_counted if failure else None,
        "log_tail": failure and failure.log_tail,
        "warnings": list(result.warnings),
        "processes": plain(result.processes),
        "environment": dict(result.environment),
    }
    if result.versions:  # what it ran under, rather than what was expected
        values["versions"] = dict(result.versions)
    return values


def _number(attempt: str, measurement: Measurement) -> dict[str, Any]:
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


def _remember(connection: Connection, at: datetime, succeeded: Ending) -> None:
    """Keep how long they took, for guessing how long their like will take."""
    began: dict[str, datetime] = {}
    columns = tables.attempts.c
    for part in parts([result.attempt for _, result in succeeded]):
        query = select(columns.id, columns.started_at).where(columns.id.in_(part))
        began |= {row.id: row.started_at for row in connection.execute(query)}
    fresh: dict[str, list[float]] = defaultdict(list)
    for found, result in succeeded:
        if found.likeness:
            fresh[found.likeness].append((at - began[result.attempt]).total_seconds())
    known: dict[str, list[float]] = {}
    for part in parts(sorted(fresh)):
        known |= recent(connection, part)
    rows = [
        {"_likeness": likeness, "_recent_s": [*known.get(likeness, ()), *seconds][-RECENT:]}
        for likeness, seconds in fresh.items()
    ]
    row = {
        "likeness": bindparam("_likeness"),
        "recent_s": bindparam("_recent_s", type_=tables.durations.c.recent_s.type),
    }
    news = [one for one in rows if one["_likeness"] not in known]
    olds = [one for one in rows if one["_likeness"] in known]
    if news:
        connection.execute(insert(tables.durations).values(row), news)
    if olds:
        same = tables.durations.c.likeness == row["likeness"]
        connection.execute(update(tables.durations).where(same).values(recent_s=row["recent_s"]), olds)


def recent(connection: Connection, likenesses: Sequence[str]) -> dict[str, list[float]]:
    """How long the last few attempts of each took that succeeded."""
    columns = tables.durations.c
    rows = connection.execute(select(columns.likeness, columns.recent_s).where(columns.likeness.in_(likenesses)))
    return {row.likeness: row.recent_s for row in rows}
