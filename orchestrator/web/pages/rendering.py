"""Pages from templates. A page that is open asks again for its main part alone when the database has changed."""

import hashlib
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from jinja2 import Environment
from starlette.responses import Response

from db.writes.tokens import Role
from orchestrator import times
from orchestrator.formatting import format_bytes, format_count, format_duration, format_quantity
from orchestrator.reports.html import make_environment
from orchestrator.web.access import User
from orchestrator.web.answer_cache import Answer
from orchestrator.web.site import Site, respond_cached
from orchestrator.workloads import workload_text

STATIC = Path(__file__).parents[1] / "static"
HTML = "text/html; charset=utf-8"

#: The pages of the menu: address and title.
MENU = {
    "/": "Matrix",
    "/since": "Since",
    "/performance": "Performance",
    "/jobs": "Jobs",
    "/nodes": "Nodes",
    "/submit": "Submit",
}


@cache
def _environment() -> Environment:
    environment = make_environment(Path(__file__).parent / "templates")
    environment.filters |= {
        "time": times.format_time,
        "second": times.format_second,
        "bytes": format_bytes,
        "duration": format_duration,
        "counted": format_count,
        "shell": shlex.join,
        "workload": workload_text,
        "value": format_quantity,
        "quantity": lambda row: format_quantity(row["median"], row["unit"]),
        "query": lambda values: urlencode({name: value for name, value in values.items() if value}),
    }
    environment.globals |= {"menu": MENU, "asset": _asset}
    return environment


@cache
def _asset(name: str) -> str:
    """Return the address of a file that browsers may keep for as long as it is the same."""
    return f"/static/{name}?{hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def render(template: str, request: Request, user: User | None, values: Mapping[str, Any]) -> str:
    """Return a page, or its main part alone for a page that is open."""
    return (
        _environment()
        .get_template(template)
        .render(
            is_part="hx-request" in request.headers,
            path=request.url.path,
            address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            user=user,
            can_submit=user is not None and user.role.includes(Role.SUBMITTER),
            **values,
        )
    )


def respond(template: str, request: Request, site: Site, user: User, read: Callable[[], Mapping[str, Any]]) -> Response:
    """Answer with a page from what `read` returns."""

    def page() -> Answer:
        return Answer(render(template, request, user, read()).encode())

    key = f"{user.name} {user.role} {'hx-request' in request.headers}"
    return respond_cached(request, site, HTML, page, key)
