"""The life of an attempt: begun, and ended once with all that came of it."""

from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update

from db import tables
from db.moves import Found, change, move, note
from db.values import plain, plain_inputs
from jobs.digest import identity
from jobs.errors import LostRace
from jobs.metrics import METRICS
from jobs.stages import STAGES
from jobs.state import ACTIVE, Failure, FailureKind, TaskState, is_retried
from jobs.task import Attempt, Measurement, TaskResult
from jobs.toolchains import Toolchain

#: What an attempt came to, by what became of its task.
OUTCOMES = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.QUEUED: "failed",
    TaskState.CANCELLED: "cancelled",
}


def begin(connection: Connection, at: datetime, task: str, attempt: Attempt, toolchain: Toolchain, digest: str) -> None:
    """Queued to running, with the attempt's row."""
    change(
        connection,
        task,
        TaskState.QUEUED,
        TaskState.RUNNING,
        at_epoch=attempt.epoch - 1,
        epoch=attempt.epoch,
        tries=tables.tasks.c.tries + 1,
        attempt=attempt.id,
    )
    row = _begun(attempt, toolchain)
    node = row["node"]
    connection.execute(insert(tables.attempts).values(**row, task=task, digest=digest, started_at=at))
    note(connection, at, task, TaskState.QUEUED, TaskState.RUNNING, f"on {node}", attempt.id)


def _begun(attempt: Attempt, toolchain: Toolchain) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "epoch": attempt.epoch,
        "node": "+".join(place.node for place in attempt.places),
        "places": plain(attempt.places),
        "commands": plain(attempt.commands),
        "inputs": plain_inputs(attempt.inputs),
        "identity": identity(STAGES[attempt.stage], attempt.settings, toolchain, attempt.inputs),
        "timeout_s": attempt.timeout_s,
        "toolchain": toolchain.name,
        "versions": dict(toolchain.versions),
        "host_cpu": toolchain.host_cpu,
        "environment": {},
        "warnings": [],
        "processes": [],
    }


def succeeded_with(digest: str) -> Select[tuple[str, str]]:
    """Attempts (id, task) of this digest that succeeded, newest first."""
    columns = tables.attempts.c
    matches = select(columns.id, columns.task).where(columns.digest == digest, columns.outcome == "succeeded")
    return matches.order_by(columns.ended_at.desc())


def take_over(connection: Connection, at: datetime, task: str, digest: str, from_task: str) -> None:
    """Queued to cached; raises LostRace when `from_task` did not succeed with this digest."""
    attempt = connection.scalar(succeeded_with(digest).where(tables.attempts.c.task == from_task))
    if attempt is None:
        raise LostRace(f"task {from_task}", "taken over")
    move(connection, at, task, TaskState.QUEUED, TaskState.CACHED, detail=f"as {from_task}", attempt=attempt)


def end(connection: Connection, at: datetime, found: Found, result: TaskResult) -> TaskState:
    """Store a result and move its task; raises LostRace when the task has gone on without this attempt."""
    if found.state not in ACTIVE or (found.epoch, found.attempt) != (result.epoch, result.attempt):
        raise LostRace(f"attempt {result.attempt}", "ended")
    became = ends_as(found.state, result.failure, found.tries)
    _close(connection, at, result, OUTCOMES[became])
    _keep_files(connection, result)
    if became is not TaskState.CANCELLED:
        _keep_numbers(connection, result)
    is_handed_back = result.failure is not None and result.failure.kind is FailureKind.HANDED_BACK
    tries = found.tries - is_handed_back  # nothing went wrong: it does not count
    change(connection, found.id, found.state, became, at_epoch=result.epoch, tries=tries)
    detail = f"{result.failure.kind}: {result.failure.message}" if result.failure else ""
    note(connection, at, found.id, found.state, became, detail, result.attempt)
    return became


def ends_as(state: TaskState, failure: Failure | None, tries: int) -> TaskState:
    """What becomes of a task whose attempt ends so, its `tries`th since somebody asked for it."""
    if state is TaskState.CANCELLING or (failure and failure.kind is FailureKind.CANCELLED):
        return TaskState.CANCELLED
    if failure is None:
        return TaskState.SUCCEEDED
    return TaskState.QUEUED if is_retried(failure, tries) else TaskState.FAILED


def _close(connection: Connection, at: datetime, result: TaskResult, outcome: str) -> None:
    failure = result.failure
    values: dict[str, Any] = {
        "ended_at": at,
        "outcome": outcome,
        "failure_kind": failure and failure.kind,
        "failure_message": failure and failure.message,
        "log_tail": failure and failure.log_tail,
        "warnings": list(result.warnings),
        "processes": plain(result.processes),
        "environment": dict(result.environment),
    }
    if result.versions:  # what it ran under, rather than what was expected
        values["versions"] = dict(result.versions)
    connection.execute(update(tables.attempts).where(tables.attempts.c.id == result.attempt).values(**values))


def _keep_files(connection: Connection, result: TaskResult) -> None:
    if result.artifacts:
        rows = [{"attempt": result.attempt, **row} for row in plain(result.artifacts)]
        connection.execute(insert(tables.artifacts), rows)


def _keep_numbers(connection: Connection, result: TaskResult) -> None:
    if result.measurements:
        rows = [_number(result.attempt, measurement) for measurement in result.measurements]
        connection.execute(insert(tables.measurements), rows)


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
