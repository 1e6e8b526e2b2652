"""`haloctl retry`."""

import typer


def retry(
    name: str = typer.Argument(help="A job's or a task's id, or the start of it.", metavar="JOB|TASK"),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Queue again what failed, and what it blocked.

    What was cancelled is queued again too; what is done stays done.
    """
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        tasks = context.store.retry(name)
        if json:
            output.as_json({"queued": tasks})
        else:
            output.answer(f"queued again: {output.count(len(tasks), 'task')}")
            output.note(f"`haloctl wait {tasks[0].partition('-')[0]}` runs them where no head does")
