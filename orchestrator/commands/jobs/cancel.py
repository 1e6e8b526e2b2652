"""`haloctl cancel`."""

from orchestrator.commands import options


def cancel(name: options.JobOrTask, json: options.Json = False) -> None:
    """Cancel a task, or all tasks of a job that have not ended."""
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.follow import waiting
    from orchestrator.formatting import format_count

    with open_context() as context:
        tasks = context.store.request_cancel(name)
        waiting.settle_cancelled(context, tasks)
    if json:
        output.print_json({"cancelled": tasks})
    else:
        output.print_line(f"cancelled {format_count(len(tasks), 'task')}")
