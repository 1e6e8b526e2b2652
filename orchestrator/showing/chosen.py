"""Which attempt is meant by what people name: a task's id, an attempt's, or the start of one."""

from db import reports
from db.imported import DIGEST
from db.reports import AttemptRow
from jobs.errors import NothingToDo
from orchestrator.context import Context


def attempt_named(context: Context, name: str) -> AttemptRow:
    """Of a task its latest attempt, or the one that it was taken over from.

    Raises NotFound, and NothingToDo where it left no result.
    """
    if name.count("-") < 2:
        task = reports.task(context.database, name)
        if task.attempt is None:
            raise NothingToDo(f"task {task.id} has not run: `haloctl why {task.id}` says what it waits for")
        name = task.attempt
    attempt = reports.attempt(context.database, name)
    if attempt.digest.startswith(DIGEST):
        raise NothingToDo(f"attempt {attempt.id} was imported: nothing is known of how it was done")
    if not attempt.environment:  # it comes with the result
        raise NothingToDo(f"attempt {attempt.id} left no result that could be had again: {_fate(attempt)}")
    return attempt


def _fate(attempt: AttemptRow) -> str:
    return attempt.failure.message if attempt.failure else attempt.outcome or "it still runs"
