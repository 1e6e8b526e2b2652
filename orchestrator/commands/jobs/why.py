"""`haloctl why`."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from db.reads.reports import TaskRow
    from orchestrator.context import Context
    from orchestrator.views.reasons import Explanation


def why(
    name: Annotated[str, typer.Argument(help="Id of a task, or a unique prefix.", metavar="TASK")],
    json: options.Json = False,
) -> None:
    """Explain why a task ran, was cached, failed, or has not run.

    Of a task that failed it lists all attempts. A task that ran is compared with the most similar earlier one: what
    differs, old and new.
    """
    from db.reads import reports
    from jobs.state import TaskState
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.views import failure_story, reasons

    with open_context() as context:
        task = reports.task(context.database, name)
        explanation = _explain(context, task)
        attempts = reports.attempts(context.database, task.id) if task.failure else []
    if json:
        output.print_json(reasons.to_json(task, explanation) | {"attempts": failure_story.story_to_json(attempts)})
        return
    output.print_line(f"task {task.id}: {task.stage} for {task.subject}")
    if task.state is TaskState.FAILED and task.failure and attempts:
        for line in failure_story.tell_failure(task.job, task.failure, attempts):
            output.print_line(line)
    output.print_line(explanation.text)
    if explanation.changes:
        output.print_table(reasons.build_change_table(explanation))


def _explain(context: "Context", task: "TaskRow") -> "Explanation":
    from db.reads import identities, reports
    from db.schema.imported import DIGEST
    from jobs.state import OPEN, TaskState
    from orchestrator.views import reasons

    database = context.database
    if (task.digest or "").startswith(DIGEST):
        return reasons.explain_imported()
    if task.attempt is None or task.has_failed_before or task.state in OPEN | {TaskState.BLOCKED}:
        needed = [need for need in reports.tasks(database, task.job) if need.id in task.needs]
        return reasons.explain_open(task, needed)
    made, sent_back = identities.attempt_identity(database, task.attempt), identities.remake_reason(database, task.id)
    if task.cached_from:
        return reasons.explain_cached(task.id, made, sent_back)
    earlier = identities.earlier_attempts(database, made)
    return reasons.explain_run(made, earlier, identities.reuse_policy(database, task.id), sent_back)
