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
    from orchestrator.answers import jobs
    from orchestrator.views import rows

    if json:
        output.print_json(jobs.show_job(context.database, name))
        return
    job = reports.job(context.database, name)
    for line in rows.format_job(job, user_requests(context.database, job.id)):
        output.print_line(line)
    output.print_table(
        rows.build_task_table([rows.task_to_json(task) for task in reports.tasks(context.database, job.id)])
    )


def _show_task(context: "Context", name: str, *, json: bool) -> None:
    from db.reads import reports
    from db.reads.user_requests import user_requests
    from orchestrator import output
    from orchestrator.answers import jobs
    from orchestrator.views import rows

    if json:
        output.print_json(jobs.show_task(context.database, name))
        return
    task = reports.task(context.database, name)
    requests = user_requests(context.database, task.job, task.id)
    for line in rows.format_task(task, jobs.attempts_of(context.database, task), requests):
        output.print_line(line)
