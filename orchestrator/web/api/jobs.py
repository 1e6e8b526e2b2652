"""Jobs, tasks and attempts: what they are, and requests to submit, cancel and retry."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import PlainTextResponse, Response

from jobs.errors import BadSetting
from orchestrator.answers import jobs, pages
from orchestrator.reruns import reproduction
from orchestrator.reruns.stored_manifest import manifest_of
from orchestrator.submission import plan_text
from orchestrator.submission.submit_options import (
    CacheOptions,
    SubmitOptions,
    parse_cache_options,
    parse_options,
)
from orchestrator.views.attempt_lookup import find_attempt
from orchestrator.web import requests, submissions
from orchestrator.web.access import ReaderUser, SubmitterUser
from orchestrator.web.api.answers import After, Limit, Text, answer
from orchestrator.web.site import SiteOf
from orchestrator.web.submissions import SentJob

router = APIRouter(tags=["jobs"])

JOB_FILE = {
    "requestBody": {
        "required": True,
        "content": {"application/yaml": {"schema": {"type": "string", "description": "A job file, in YAML or JSON."}}},
    }
}


@router.get("/jobs")
def list_jobs(
    request: Request, site: SiteOf, _: ReaderUser, toolchain: Text = None, limit: Limit = 100, after: After = None
) -> Response:
    """List jobs, newest first."""
    database = site.database
    return answer(request, site, lambda: pages.jobs(database, limit=limit, after=after, toolchain=toolchain))


def _options(
    priority: Annotated[int | None, Query(ge=-1000, le=1000)] = None,
    nodes: Text = None,
    devices: Text = None,
    start: Annotated[
        str | None, Query(alias="from", max_length=100, description="A stage: it and later ones run.")
    ] = None,
) -> SubmitOptions:
    return parse_options(priority, nodes, devices, start)


def _cache_options(options: "Options", cache: bool = True, reuse_measurements: bool = False) -> CacheOptions:
    return parse_cache_options(cache=cache, start=options.start, reuse_measurements=reuse_measurements)


Options = Annotated[SubmitOptions, Depends(_options)]
Cached = Annotated[CacheOptions, Depends(_cache_options)]


@router.post("/jobs", status_code=201, openapi_extra=JOB_FILE)
async def submit_job(
    request: Request,
    response: Response,
    site: SiteOf,
    user: SubmitterUser,
    options: Options,
    cached: Cached,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Submit a job file; with `dry_run`, return its tasks and their commands, and store nothing."""
    try:
        job = SentJob((await request.body()).decode(), options, cached)
    except UnicodeDecodeError:
        raise BadSetting("the body", "is not text in UTF-8: send a job file") from None
    if dry_run:
        response.status_code = 200
        return plan_text.dry_run_json(await submissions.prepare(site, job))
    name, prepared = await submissions.submit(site, user, job)
    response.headers["Location"] = f"/api/v1/jobs/{name}"
    return {"job": name, "tasks": len(prepared.plan.tasks)}


@router.get("/jobs/{job}")
def show_job(request: Request, site: SiteOf, _: ReaderUser, job: str) -> Response:
    """Return a job with its job file and its tasks."""
    return answer(request, site, lambda: jobs.show_job(site.database, job))


@router.get("/tasks/{task}")
def show_task(request: Request, site: SiteOf, _: ReaderUser, task: str) -> Response:
    """Return a task with its attempts."""
    return answer(request, site, lambda: jobs.show_task(site.database, task))


@router.get("/tasks/{task}/why")
def why(request: Request, site: SiteOf, _: ReaderUser, task: str) -> Response:
    """Return why a task ran, was cached, failed, or has not run."""
    return answer(request, site, lambda: jobs.why(site.database, task))


@router.get("/tasks/{task}/reproduce", response_class=PlainTextResponse)
def reproduce(site: SiteOf, _: ReaderUser, task: str) -> PlainTextResponse:
    """Return a script that runs a task's latest attempt by hand."""
    attempt = find_attempt(site.context, task)
    return PlainTextResponse(reproduction.script(manifest_of(site.context, attempt, links=False)))


@router.get("/attempts/{attempt}")
def show_attempt(request: Request, site: SiteOf, _: ReaderUser, attempt: str) -> Response:
    """Return an attempt with its commands, inputs and outputs."""
    return answer(request, site, lambda: jobs.show_attempt(site.database, attempt))


@router.post("/jobs/{name}/cancel")
@router.post("/tasks/{name}/cancel")
def cancel(site: SiteOf, user: SubmitterUser, name: str) -> dict[str, list[str]]:
    """Cancel a task, or all tasks of a job that have not ended."""
    return {"cancelled": requests.cancel(site, user, name)}


@router.post("/jobs/{name}/retry")
@router.post("/tasks/{name}/retry")
def retry(site: SiteOf, user: SubmitterUser, name: str) -> dict[str, list[str]]:
    """Queue failed, blocked and cancelled tasks again: all of a job, or one with those connected to it."""
    return {"queued": requests.retry(site, user, name)}
