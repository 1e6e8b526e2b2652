"""Server-sent events, health, and who is logged in."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

from jobs.errors import Unreachable
from orchestrator.web.access import ReaderUser
from orchestrator.web.site import Site, SiteOf
from workers.llm.serving.connection_limits import ClosingStream

router = APIRouter(tags=["server"])

HEARTBEAT_S = 15.0  #: below the time after which proxies close a silent connection


@router.get("/changes")
async def changes(site: SiteOf, _: ReaderUser) -> Response:
    """Send the event `changed` soon after the database has changed (text/event-stream)."""
    return ClosingStream(_events(site), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(site: Site) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    while True:
        has_changed = await site.bell.wait(HEARTBEAT_S)
        yield b"event: changed\ndata: {}\n\n" if has_changed else b": still here\n\n"


@router.get("/user")
def user(current: ReaderUser) -> dict[str, str]:
    """Return the user's name and role."""
    return {"name": current.name, "role": current.role.value}


@router.get("/health")
def health(site: SiteOf) -> dict[str, str]:
    """Say that the database answers; 503 if it does not. It needs no token."""
    try:
        site.cache.tag()
    except Unreachable:
        raise HTTPException(503, "the database does not answer") from None
    return {"status": "ok"}
