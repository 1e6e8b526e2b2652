"""What the routes of the web server work with."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import Response

from db.connection.engine import Database
from orchestrator.context import Context
from orchestrator.submission.readable_folders import ReadableFolders
from orchestrator.web.access import Access
from orchestrator.web.answer_cache import Answer, AnswerCache
from orchestrator.web.change_bell import ChangeBell

MAX_PREPARED = 2  #: jobs at a time: to check a model is a process that imports torch


@dataclass(frozen=True)
class Site:
    """A database, its change bell, and who may do what."""

    context: Context
    access: Access
    cache: AnswerCache
    bell: ChangeBell
    readable: ReadableFolders
    preparing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PREPARED))

    @property
    def database(self) -> Database:
        """The database."""
        return self.context.database


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


SiteOf = Annotated[Site, Depends(_site)]


def respond_cached(
    request: Request, site: Site, media_type: str, compute: Callable[[], Answer], key: str = ""
) -> Response:
    """Answer a request from the cache, or with 304 if the client has the answer.

    `key` is what the answer follows from besides the address.
    """
    question = f"{request.url.path}?{request.url.query} {key}"
    headers = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie, HX-Request"}
    known = request.headers.get("if-none-match", "")
    if known and (tag := site.cache.tag()) in (part.strip() for part in known.split(",")):
        return Response(status_code=304, headers={**headers, "ETag": tag})
    tag, answer = site.cache.answer(question, compute)
    if answer.next is not None:
        following = request.url.include_query_params(after=answer.next)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    return Response(answer.body, headers={**headers, "ETag": tag}, media_type=media_type)
