"""`haloctl show`."""

from typing import TYPE_CHECKING

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.context import Context


def show(name: options.JobOrTask, json: options.Json = False) -> None:
    """Show a job with its tasks, or a task with its attempts.

    Waiting tasks show their reason; attempts show their commands, files and failures.
    """
    from orchestrator.context import open_context

    with open_context() as context:
        (_show_task if "-" in name else _show_job)(context, name, json=json)


def _show_job(context: "Context", name: str, *, json: bool) -> None:
    from db.reads import reports
    from db.reads.user_requests import user_requests
    from orchestrator import output
    from orchestrator.views import rows

    job = reports.job(context.database, name)
    requests = user_requests(context.database, job.id)
    tasks = [rows.task_to_json(task) for task in reports.tasks(context.database, job.id)]
    if json:
        spec = reports.job_spec(context.database, job.id)
        about = {"spec": spec, "requests": rows.requests_to_json(requests), "tasks": tasks}
        output.print_json(rows.job_to_json(job) | about)
        return
    for line in rows.format_job(job, requests):
        output.print_line(line)
    output.print_table(rows.build_task_table(tasks))


def _show_task(context: "Context", name: str, *, json: bool) -> None:
    from db.reads import reports
    from db.reads.user_requests import user_requests
    from orchestrator import output
    from orchestrator.views import rows

    task = reports.task(context.database, name)
    attempts = reports.attempts(context.database, task.cached_from or task.id)
    attempts_json = [rows.attempt_to_json(attempt) for attempt in attempts]
    requests = user_requests(context.database, task.job, task.id)
    if json:
        about = {"requests": rows.requests_to_json(requests), "attempts": attempts_json}
        output.print_json(rows.task_to_json(task) | about)
        return
    for line in rows.format_task(task, attempts_json, requests):
        output.print_line(line)
