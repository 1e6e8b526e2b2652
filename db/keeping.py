"""What attempts came to, as rows: how they ended, their files, their numbers, how long they took."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from statistics import median
from typing import Any

from sqlalchemy import Connection, Update, bindparam, insert, select, update

from db import tables
from db.filters import among, parts
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
        connection.execute(_closing(names), rows)


@cache
def _closing(names: frozenset[str]) -> Update:
    columns = {name: bindparam(f"_{name}", type_=tables.attempts.c[name].type) for name in names}
    return update(tables.attempts).where(tables.attempts.c.id == bindparam("_id")).values(columns)


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


_BEGAN = select(tables.attempts.c.id, tables.attempts.c.started_at).where(among(tables.attempts.c.id))
_DURATIONS = select(tables.durations).where(among(tables.durations.c.likeness))
_RECENT_S = bindparam("_recent_s", type_=tables.durations.c.recent_s.type)
_FIRST_DURATIONS = insert(tables.durations).values(likeness=bindparam("_likeness"), recent_s=_RECENT_S)
_MORE_DURATIONS = (
    update(tables.durations).where(tables.durations.c.likeness == bindparam("_likeness")).values(recent_s=_RECENT_S)
)


def _remember(connection: Connection, at: datetime, succeeded: Ending) -> None:
    """Keep how long they took, for guessing how long their like will take."""
    began: dict[str, datetime] = {}
    for part in parts([result.attempt for _, result in succeeded]):
        began |= {row.id: row.started_at for row in connection.execute(_BEGAN, {"ids": part})}
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
    news = [one for one in rows if one["_likeness"] not in known]
    olds = [one for one in rows if one["_likeness"] in known]
    if news:
        connection.execute(_FIRST_DURATIONS, news)
    if olds:
        connection.execute(_MORE_DURATIONS, olds)


def recent(connection: Connection, likenesses: Sequence[str]) -> dict[str, list[float]]:
    """How long the last few attempts of each took that succeeded."""
    return {row.likeness: row.recent_s for row in connection.execute(_DURATIONS, {"ids": likenesses})}
