"""Who asks, and what they may do."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from db.schema.actors import process_user
from orchestrator.web.failed_logins import FailedLogins

COOKIE = "haloctl_token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Role(IntEnum):
    """What a user may do; each may do what those before it may."""

    READER = 1  #: read
    SUBMITTER = 2  #: submit jobs, and cancel and retry these
    ADMIN = 3  #: cancel and retry all jobs


@dataclass(frozen=True)
class User:
    """Somebody who is logged in."""

    name: str
    role: Role


def digest_of_token(token: str) -> str:
    """Return what stands for a token where it is kept: tokens are too random to be guessed from it."""
    return hashlib.sha256(token.encode()).hexdigest()


class Access:
    """Tells who makes a request, by its token."""

    def __init__(self, local_token: str) -> None:
        """`local_token` is the one that the user of this process reads from a file."""
        self._local = digest_of_token(local_token)
        self._failed = FailedLogins()

    def user_with(self, token: str, address: str) -> User:
        """Return the user with a token. Raises HTTPException: 401, or 429 for an address with too many wrong tokens."""
        if hmac.compare_digest(digest_of_token(token), self._local):
            return User(process_user(), Role.ADMIN)
        if wait_s := self._failed.record(address):
            raise HTTPException(429, "too many wrong tokens from your address", {"Retry-After": str(wait_s)})
        raise HTTPException(401, "the token is wrong or has expired", {"WWW-Authenticate": "Bearer"})


def logged_in(request: Request) -> User:
    """Return who makes a request. Raises HTTPException: 401, 429, or 403 for one that another site makes."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
    if not token:
        raise HTTPException(
            401, "log in, or give a token as `Authorization: Bearer TOKEN`", {"WWW-Authenticate": "Bearer"}
        )
    expect_same_site(request)
    access: Access = request.app.state.site.access
    return access.user_with(token, request.client.host if request.client else "")


def expect_same_site(request: Request) -> None:
    """Raise HTTPException for a change that a page of another site asks a browser for.

    Browsers say where such a request comes from; what is no browser says nothing. See
    https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html
    """
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_own = (
        site in ("same-origin", "none") if site else origin is None or urlsplit(origin).netloc == request.url.netloc
    )
    if not is_own:
        raise HTTPException(403, "the request comes from a page of another site")


def _expect(role: Role) -> Callable[[User], User]:
    def expect(user: Annotated[User, Depends(logged_in)]) -> User:
        if user.role < role:
            raise HTTPException(403, f"{user.name} is a {user.role.name.lower()}: this takes a {role.name.lower()}")
        return user

    return expect


ReaderUser = Annotated[User, Depends(logged_in)]
SubmitterUser = Annotated[User, Depends(_expect(Role.SUBMITTER))]
