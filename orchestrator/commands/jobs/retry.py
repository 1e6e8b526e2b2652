"""`haloctl retry`."""

from typing import Annotated

import typer

from orchestrator.commands import options


def retry(
    name: options.JobOrTask,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job, then print the matrix.")] = False,
    json: options.Json = False,
) -> None:
    """Queue failed, blocked and cancelled tasks again.

    Tasks that are done stay done.
    """
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_count

    with open_context() as context:
        tasks = context.store.retry(name)
        job, message = tasks[0].partition("-")[0], f"queued again: {format_count(len(tasks), 'task')}"
        if wait:
            from orchestrator.follow import waiting

            output.print_message(message)
            waiting.wait_for(context, job, json=json, timeout_s=None, cancels_when_interrupted=False)
        elif json:
            output.print_json({"queued": tasks})
        else:
            output.print_line(message)
            output.print_message(f"without a head, run `haloctl wait {job}`")
