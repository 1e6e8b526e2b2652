"""`haloctl why`."""

from typing import Annotated

import typer

from orchestrator.commands import options


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
    from orchestrator.answers import jobs
    from orchestrator.context import open_context
    from orchestrator.views import failure_story, reasons

    with open_context() as context:
        if json:
            output.print_json(jobs.why(context.database, name))
            return
        task = reports.task(context.database, name)
        explanation = jobs.explain(context.database, task)
        attempts = reports.attempts(context.database, task.id) if task.failure else []
    output.print_line(f"task {task.id}: {task.stage} for {task.subject}")
    if task.state is TaskState.FAILED and task.failure and attempts:
        for line in failure_story.tell_failure(task.job, task.failure, attempts):
            output.print_line(line)
    output.print_line(explanation.text)
    if explanation.changes:
        output.print_table(reasons.build_change_table(explanation))
