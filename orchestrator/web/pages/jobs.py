"""Jobs, the queue, a job, and a task with all that is known of it."""

import json
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from db.reads import reports
from db.reads.results import results
from jobs.masking import masked
from jobs.state import ACTIVE, ENDED, OPEN, TaskState
from orchestrator.answers import jobs, pages
from orchestrator.views import reasons, rows
from orchestrator.web import requests
from orchestrator.web.access import ReaderUser, SubmitterUser
from orchestrator.web.pages import rendering
from orchestrator.web.site import Site, SiteOf

router = APIRouter(include_in_schema=False)

JOBS_ON_A_PAGE = 50
MAX_OPEN_TASKS = 200
RETRIED = frozenset({TaskState.FAILED, TaskState.BLOCKED, TaskState.CANCELLED})
ACTIONS = {"cancel": requests.cancel, "retry": requests.retry}


@router.get("/jobs")
def list_jobs(
    request: Request, site: SiteOf, user: ReaderUser, after: Annotated[str | None, Query(max_length=50)] = None
) -> Response:
    """Show jobs, newest first, below what runs and what waits."""

    def read() -> dict[str, Any]:
        page = pages.jobs(site.database, limit=JOBS_ON_A_PAGE, after=after)
        tasks = [rows.task_to_json(task) for task in reports.open_tasks(site.database, MAX_OPEN_TASKS)]
        return {
            "page": page,
            "is_first": after is None,
            "running": [task for task in tasks if task["state"] in ACTIVE],
            "waiting": [task for task in tasks if task["state"] in OPEN],
            "most": MAX_OPEN_TASKS,
        }

    return rendering.respond("jobs.html.j2", request, site, user, read)


@router.get("/jobs/{name}")
def show_job(request: Request, site: SiteOf, user: ReaderUser, name: str) -> Response:
    """Show a job with its tasks and its job file."""

    def read() -> dict[str, Any]:
        job = jobs.show_job(site.database, name)
        states = {task["state"] for task in job["tasks"]}
        return {
            "job": job,
            "job_file": yaml.safe_dump(job["spec"], sort_keys=False, allow_unicode=True),
            "can_cancel": bool(states - ENDED),
            "can_retry": bool(states & RETRIED),
        }

    return rendering.respond("job.html.j2", request, site, user, read)


@router.get("/tasks/{name}")
def show_task(request: Request, site: SiteOf, user: ReaderUser, name: str) -> Response:
    """Show a task: its attempts, commands, log, files and measurements, and why it ran."""
    return rendering.respond("task.html.j2", request, site, user, lambda: read_task(site, name))


def read_task(site: Site, name: str) -> dict[str, Any]:
    """Return what the page of a task shows. Raises NotFound, AmbiguousId."""
    task = reports.task(site.database, name)
    explanation = jobs.explain(site.database, task)
    measured = results(site.database, task=task.cached_from or task.id)
    return {
        "task": rows.task_to_json(task),
        "settings": json.dumps(masked(dict(task.settings)), indent=2, default=str),
        "attempts": list(reversed(jobs.attempts_of(site.database, task))),
        "why": explanation.text,
        "changes": reasons.build_change_table(explanation) if explanation.changes else None,
        "measurements": [rows.result_to_json(row) for row in measured],
        "can_cancel": task.state not in ENDED,
        "can_retry": task.state in RETRIED,
        "links": task.settings.get("links", ()),
    }


@router.post("/jobs/{name}/{action}")
@router.post("/tasks/{name}/{action}")
def change(request: Request, site: SiteOf, user: SubmitterUser, name: str, action: str) -> Response:
    """Cancel a job or a task, or queue it again; then show it."""
    if action not in ACTIONS:
        return RedirectResponse(request.url.path.rpartition("/")[0], 303)
    ACTIONS[action](site, user, name)
    return RedirectResponse(request.url.path.rpartition("/")[0], 303)
