"""Answers in JSON."""

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from orchestrator.answers.pages import Page
from orchestrator.web.answer_cache import Answer
from orchestrator.web.site import Site, respond_cached

MAX_ROWS = 10_000
MAX_TEXT = 1000  #: characters of a parameter

Text = Annotated[str | None, Query(max_length=MAX_TEXT)]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="At most this many, newest first.")]
After = Annotated[str | None, Query(max_length=MAX_TEXT, description="From the `Link` header of the page before.")]
Since = Annotated[str | None, Query(max_length=MAX_TEXT, description="A date, time or age: 2026-11-20, 90m, 12h, 7d.")]


def to_bytes(value: object) -> bytes:
    """Return a value in JSON, in ASCII."""
    return json.dumps(value, allow_nan=False, default=str).encode()


def answer(request: Request, site: Site, compute: Callable[[], Any]) -> Response:
    """Answer with a value in JSON, or with a page of rows."""

    def as_answer() -> Answer:
        value = compute()
        return Answer(to_bytes(value.rows), value.next) if isinstance(value, Page) else Answer(to_bytes(value))

    return respond_cached(request, site, "application/json", as_answer)
