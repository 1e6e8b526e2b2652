"""`haloctl retry`."""

import typer


def retry(
    name: str = typer.Argument(help="A job's or a task's id, or the start of it.", metavar="JOB|TASK"),
    wait: bool = typer.Option(False, "--wait", help="Run until nothing is left that can run, then print the matrix."),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Queue again what failed, and what it blocked.

    What was cancelled is queued again too; what is done stays done.
    """
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        tasks = context.store.retry(name)
        job, told = tasks[0].partition("-")[0], f"queued again: {output.count(len(tasks), 'task')}"
        if wait:
            from orchestrator.submitting import waiting

            output.note(told)
            waiting.wait_for(context, job, json=json, timeout_s=None, cancels_when_interrupted=False)
        elif json:
            output.as_json({"queued": tasks})
        else:
            output.answer(told)
            output.note(f"`haloctl wait {job}` runs them where no head does")
