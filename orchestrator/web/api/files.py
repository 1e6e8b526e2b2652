"""Logs and artifacts: whole, in ranges, and logs as they grow."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, RedirectResponse, Response

from db.reads import artifact_refs, reports
from db.reads.reports import AttemptRow
from jobs.task import Artifact
from orchestrator.answers import pages
from orchestrator.views import log_parts
from orchestrator.web.access import ReaderUser
from orchestrator.web.api.answers import After, Limit, Text, answer
from orchestrator.web.site import Site, SiteOf
from workers.llm.serving.connection_limits import ClosingStream

router = APIRouter(tags=["files"])

PART_BYTES = 1 << 18
POLL_S = 0.3  #: a file gives no notice when it grows
MAX_OFFSET = 2**62
#: A browser runs nothing of a file of a program, and nothing is compressed: that would hold parts back, and end ranges.
UNTRUSTED = {"Content-Security-Policy": "default-src 'none'; sandbox", "Content-Encoding": "identity"}


@router.get("/attempts/{attempt}/log")
def log(
    site: SiteOf,
    _: ReaderUser,
    attempt: str,
    follow: Annotated[bool, Query(description="Send the log as it grows, until the attempt has ended.")] = False,
    offset: Annotated[
        int, Query(ge=-MAX_OFFSET, le=MAX_OFFSET, description="In bytes; below 0: so many before the end.")
    ] = 0,
) -> Response:
    """Return an attempt's log. A request with `Range` gets that part, if the log is a file of the server's machine."""
    row = reports.attempt(site.database, attempt)
    file = log_parts.log_file(site.context, row)
    if file is not None and not follow and offset == 0:
        return FileResponse(file, media_type="text/plain; charset=utf-8", headers=UNTRUSTED)
    log_parts.request_fetching(site.context, row)
    parts = followed_log(site, row, offset, follow=follow)
    return ClosingStream(parts, media_type="text/plain; charset=utf-8", headers=UNTRUSTED)


async def followed_log(site: Site, attempt: AttemptRow, offset: int, *, follow: bool) -> AsyncIterator[bytes]:
    """Yield the parts of a log, with `follow` until its attempt has ended."""
    has_ended = attempt.ended_at is not None
    while True:
        part = await run_in_threadpool(log_parts.read_part, site.context, attempt, offset, PART_BYTES)
        offset = part.end
        if part.data:
            yield part.data
        elif has_ended or not follow:
            return
        else:
            await site.bell.wait(POLL_S)
            attempt = await run_in_threadpool(reports.attempt, site.database, attempt.id)
            await run_in_threadpool(log_parts.request_fetching, site.context, attempt)
            has_ended = attempt.ended_at is not None


@router.get("/artifacts")
def list_artifacts(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    job: Text = None,
    model: Text = None,
    variant: Text = None,
    target: Text = None,
    kind: Text = None,
    limit: Limit = 1000,
    after: After = None,
) -> Response:
    """List the files that tasks made, newest first."""
    names = {"job": job, "model": model, "variant": variant, "target": target, "kind": kind}
    address = site.context.artifacts.address
    return answer(request, site, lambda: pages.artifacts(site.database, address, limit=limit, after=after, **names))


@router.get("/artifacts/{name:path}/content")
def content(site: SiteOf, _: ReaderUser, name: str) -> Response:
    """Return a file's content by its sha256, a unique prefix of it, or TASK/NAME; ranges are honoured.

    A file in a remote store that signs URLs is there at once: the answer is a redirection.
    """
    artifact = artifact_refs.find_artifact(site.database, name)
    links = site.context.artifacts.links(artifact)
    if len(links) == 1 and links[0].startswith("https://"):
        return RedirectResponse(links[0], 307)
    headers = UNTRUSTED | {"ETag": f'"{artifact.sha256}"', "Cache-Control": "private, max-age=31536000, immutable"}
    file = site.context.artifacts.local(artifact)
    return FileResponse(file, filename=artifact.name, media_type="application/octet-stream", headers=headers)


@router.get("/artifacts/{name:path}")
def show_artifact(request: Request, site: SiteOf, _: ReaderUser, name: str) -> Response:
    """Return a file's name, kind, size and sha256, and the tasks that made and used it."""
    return answer(request, site, lambda: _describe(site, artifact_refs.find_artifact(site.database, name)))


def _describe(site: Site, artifact: Artifact) -> dict[str, object]:
    makers = artifact_refs.producers(site.database, artifact.sha256)
    users = artifact_refs.consumers(site.database, artifact.sha256)
    return {
        **asdict(artifact),
        "made_by": [{**asdict(task), "made_at": task.made_at and task.made_at.isoformat()} for task in makers],
        "used_by": [asdict(user) for user in users],
    }
