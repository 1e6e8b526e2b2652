"""Submitting a job file that is pasted, with its dry run beside it."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from jobs.errors import FileError, HaloError
from jobs.models import RECIPES
from orchestrator.submission import job_file, plan_text
from orchestrator.web import submissions
from orchestrator.web.access import ReaderUser, SubmitterUser, User
from orchestrator.web.pages import rendering
from orchestrator.web.pages.forms import read_form
from orchestrator.web.site import SiteOf
from orchestrator.web.submissions import SentJob

router = APIRouter(include_in_schema=False)

CONTEXT_LINES = 2  #: around the line of an error


@router.get("/submit")
def form(request: Request, user: ReaderUser, recipe: str = "demo") -> Response:
    """Show a form with a recipe to begin with."""
    text = (RECIPES / f"{recipe}.yaml").read_text() if recipe in job_file.recipes() else ""
    return _page(request, user, text)


@router.post("/submit")
async def submit(request: Request, site: SiteOf, user: SubmitterUser) -> Response:
    """Check a job file and show its plan or its error; submit it if that was asked for."""
    fields = await read_form(request)
    job = SentJob(fields.get("text", ""))
    try:
        if fields.get("action") != "submit":
            lines = list(plan_text.dry_run_lines(await submissions.prepare(site, job)))
            return await run_in_threadpool(_page, request, user, job.text, plan="\n".join(lines))
        name, _ = await submissions.submit(site, user, job)
    except HaloError as error:
        return await run_in_threadpool(_page, request, user, job.text, error=error)
    goal = f"/jobs/{name}"
    return Response(headers={"HX-Redirect": goal}) if "hx-request" in request.headers else RedirectResponse(goal, 303)


def _page(request: Request, user: User, text: str, plan: str = "", error: HaloError | None = None) -> HTMLResponse:
    values: dict[str, Any] = {
        "text": text,
        "plan": plan,
        "error": str(error) if error else "",
        "excerpt": excerpt(text, error.line) if isinstance(error, FileError) and error.line else [],
        "recipes": job_file.recipes(),
    }
    return HTMLResponse(
        rendering.render("submit.html.j2", request, user, values), headers={"Cache-Control": "no-store"}
    )


def excerpt(text: str, line: int) -> list[tuple[int, str, bool]]:
    """Return the lines around a line, each with its number and whether it is that line."""
    lines = list(enumerate(text.splitlines(), 1))[max(line - 1 - CONTEXT_LINES, 0) : line + CONTEXT_LINES]
    return [(number, content, number == line) for number, content in lines]
