"""Logging in with a token, which the browser then keeps in a cookie that no script and no other site gets."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from orchestrator.web.access import COOKIE, expect_same_site
from orchestrator.web.pages import rendering
from orchestrator.web.pages.forms import read_form
from orchestrator.web.site import SiteOf

router = APIRouter(include_in_schema=False)

MAX_AGE_S = 30 * 24 * 3600


@router.get("/login")
def form(request: Request, next: str = "/") -> Response:
    """Show a form for a token."""
    return _page(request, next, "")


@router.post("/login")
async def login(request: Request, site: SiteOf) -> Response:
    """Keep a token that is right in a cookie."""
    expect_same_site(request)
    fields = await read_form(request)
    token, goal = fields.get("token", "").strip(), local_path(fields.get("next", "/"))
    address = request.client.host if request.client else ""
    try:
        await run_in_threadpool(site.access.user_with, token, request.headers, address)
    except HTTPException as error:
        page = await run_in_threadpool(_page, request, goal, str(error.detail))
        page.status_code = error.status_code
        return page
    response = RedirectResponse(goal, 303)
    is_encrypted = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, MAX_AGE_S, httponly=True, samesite="strict", secure=is_encrypted)
    return response


@router.post("/logout")
def logout(request: Request) -> Response:
    """Forget the token."""
    expect_same_site(request)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _page(request: Request, goal: str, error: str) -> HTMLResponse:
    values = {"next": local_path(goal), "error": error}
    page = rendering.render("login.html.j2", request, None, values)
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})


def local_path(text: str) -> str:
    """Return the path of a page of this server, and the first page for any other address."""
    is_local = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return text if is_local else "/"
