"""Errors as pages; who is not logged in gets the form to log in."""

from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from orchestrator.web.pages.rendering import render


def respond_with_page(request: Request, status: int, problem: dict[str, Any], headers: dict[str, str]) -> Response:
    """Return a page that tells of a problem."""
    if status == 401 and request.method == "GET":
        goal = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?{urlencode({'next': goal})}", 303)
    return HTMLResponse(render("problem.html.j2", request, None, {"problem": problem}), status, headers)
