"""The attempt that a user names by the id of a task or an attempt, or by a prefix of it."""

from db.reads import reports
from db.reads.reports import AttemptRow
from db.schema.imported import DIGEST
from jobs.errors import NothingToDo
from orchestrator.context import Context


def find_attempt(context: Context, name: str) -> AttemptRow:
    """Return an attempt, or of a task its latest attempt or the one that it was cached from.

    Raises NotFound, and NothingToDo for an attempt without a result.
    """
    if name.count("-") < 2:
        task = reports.task(context.database, name)
        if task.attempt is None:
            raise NothingToDo(f"task {task.id} has not run: `haloctl why {task.id}` says what it waits for")
        name = task.attempt
    attempt = reports.attempt(context.database, name)
    if attempt.digest.startswith(DIGEST):
        raise NothingToDo(f"attempt {attempt.id} was imported, so its commands are unknown")
    if not attempt.environment:  # it is stored with the result
        fate = attempt.failure.message if attempt.failure else attempt.outcome or "it is still running"
        raise NothingToDo(f"attempt {attempt.id} has no result: {fate}")
    return attempt
