"""`haloctl cancel`."""

import typer


def cancel(
    name: str = typer.Argument(help="A job's or a task's id, or the start of it.", metavar="JOB|TASK"),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Cancel what has not ended of a job, or one task."""
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.submitting import waiting

    with opened() as context:
        tasks = context.store.request_cancel(name)
        waiting.settle_cancelled(context, tasks)
        if json:
            output.as_json({"cancelled": tasks})
        else:
            output.answer(f"cancelled {output.count(len(tasks), 'task')}")
