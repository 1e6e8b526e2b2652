"""The application: its routes, its errors, and what holds for every response."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.web.api import changes, files, jobs, results
from orchestrator.web.pages import jobs as job_pages
from orchestrator.web.pages import login, matrix, nodes, performance, since, submit
from orchestrator.web.pages.problem import respond_with_page
from orchestrator.web.pages.rendering import STATIC
from orchestrator.web.problems import add_error_handlers, respond_in_json
from orchestrator.web.site import Site
from workers.llm.serving.connection_limits import ConnectionLimits

API = "/api/v1"
PAGES = (matrix, since, performance, job_pages, nodes, submit, login)
MAX_BODY_BYTES = 1 << 20  #: job files have 256 KiB
THREADS = 10  #: that read the database; fewer than the connections of its pool
COMPRESSED_FROM_BYTES = 1024

#: Scripts and styles come from files of this server alone, so that no name or message can bring one along.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SafeHeaders:
    """Adds the headers that tell browsers what not to do, where a route has not set them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add headers to its response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


def make_app(site: Site) -> FastAPI:
    """Return the application of a site."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        async with site.bell.watching(site.database):
            yield

    app = FastAPI(
        title="haloctl",
        description="What `haloctl` tells with `--json`, over HTTP. Errors are problem details (RFC 9457).",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
    )
    app.state.site = site
    app.add_middleware(ConnectionLimits, max_body_bytes=MAX_BODY_BYTES)
    app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES, compresslevel=4)
    app.add_middleware(SafeHeaders)
    add_error_handlers(app, _respond)
    for module in (jobs, results, files, changes):
        app.include_router(module.router, prefix=API)
    for page in PAGES:
        app.include_router(page.router)
    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _respond(request: Request, status: int, problem: dict[str, Any], headers: dict[str, str]) -> Response:
    """Answer programs with a problem in JSON, and people with a page."""
    answer = respond_in_json if request.url.path.startswith("/api/") else respond_with_page
    return answer(request, status, problem, headers)
