"""`haloctl show`."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from orchestrator.context import Context


def show(
    name: str = typer.Argument(help="A job's or a task's id, or the start of it.", metavar="JOB|TASK"),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Show a job with its tasks, or a task with its attempts.

    Open tasks say what they wait for; attempts say their commands, files and failures.
    """
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        found, lines = (_task if "-" in name else _job)(context, name)
    if json:
        output.as_json(found)
        return
    for line in lines:
        output.answer(line)
    if "tasks" in found:
        output.table(
            ("task", "state", "stage", "for", "time", ""),
            [(t["task"], t["shown_state"], t["stage"], t["subject"], t["took"], t["remark"]) for t in found["tasks"]],
            right=("time",),
        )


def _job(context: "Context", name: str) -> tuple[dict[str, Any], list[str]]:
    from db import reports
    from orchestrator.showing import rows

    job = reports.job(context.database, name)
    found = rows.job(job) | {
        "spec": reports.job_spec(context.database, job.id),
        "tasks": [rows.task(task) for task in reports.tasks(context.database, job.id)],
    }
    lines = [
        f"job {job.id}: {job.name}",
        f"{job.state}, {found['done']} of {job.tasks} tasks done",
        f"submitted by {job.submitted_by} at {rows.when(found['submitted_at'])}"
        + (f" ({found['origin']})" if found["origin"] else ""),
        "",
    ]
    return found, lines


def _task(context: "Context", name: str) -> tuple[dict[str, Any], list[str]]:
    from db import reports
    from orchestrator.showing import rows

    task = reports.task(context.database, name)
    source = task.cached_from or task.id
    attempts = [rows.attempt(attempt) for attempt in reports.attempts(context.database, source)]
    return rows.task(task) | {"attempts": attempts}, rows.task_lines(task, attempts)
