"""`haloctl why`."""

from json import dumps
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from db.reports import TaskRow
    from orchestrator.context import Context
    from orchestrator.showing.reasons import Explanation


def why(
    name: str = typer.Argument(help="A task's id, or the start of it.", metavar="TASK"),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Say why a task ran, was taken from the cache, or has not run.

    A task that had to run is compared with the nearest earlier one: what differs, old and new.
    """
    from db import reports
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        task = reports.task(context.database, name)
        found = _explain(context, task)
    if json:
        output.as_json(_row(task, found))
        return
    output.answer(f"task {task.id}: {task.stage} for {task.subject}")
    output.answer(found.text)
    if found.changes:
        output.table(("differs in", "old", "new"), [_line(change) for change in found.changes])


def _explain(context: "Context", task: "TaskRow") -> "Explanation":
    from db import identities, reports
    from db.imported import DIGEST
    from jobs.state import OPEN, TaskState
    from orchestrator.showing import reasons

    database = context.database
    if (task.digest or "").startswith(DIGEST):
        return reasons.explain_imported()
    if task.attempt is None or task.has_failed_before or task.state in OPEN | {TaskState.BLOCKED}:
        needed = [found for found in reports.tasks(database, task.job) if found.id in task.needs]
        return reasons.explain_open(task, needed)
    made, sent_back = identities.made(database, task.attempt), identities.sent_back(database, task.id)
    if task.cached_from:
        return reasons.explain_taken_over(task.id, made, sent_back)
    earlier = identities.made_earlier(database, made)
    return reasons.explain_run(made, earlier, identities.freedom(database, task.id), sent_back)


def _row(task: "TaskRow", found: "Explanation") -> dict[str, Any]:
    earlier = found.earlier
    return {
        "task": task.id,
        "stage": task.stage,
        "subject": task.subject,
        "state": task.state.value,
        "reason": found.reason.value,
        "text": found.text,
        "earlier": earlier
        and {
            "task": earlier.task,
            "attempt": earlier.id,
            "ended_at": earlier.ended_at.isoformat() if earlier.ended_at else None,
        },
        "changes": list(found.changes),
    }


def _line(change: dict[str, Any]) -> tuple[str, str, str]:
    return change["entry"], _shown(change, "old"), _shown(change, "new")


def _shown(change: dict[str, Any], side: str) -> str:
    value = change.get(side, "")
    return value if isinstance(value, str) else dumps(value)
