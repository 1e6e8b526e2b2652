"""Who asks, and what they may do."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from db.schema.actors import process_user
from db.writes.tokens import Role, StoredToken, digest_of
from orchestrator.web.failed_logins import FailedLogins
from orchestrator.web.user_names import NAME, TrustedProxy

COOKIE = "haloctl_token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
BEARER = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True)
class User:
    """Somebody who is logged in."""

    name: str
    role: Role


class TokenBook:
    """The stored tokens by digest, read again when the database has changed. Threads may share it."""

    def __init__(self, state: Callable[[], str], read: Callable[[], Sequence[StoredToken]]) -> None:
        """`state` returns another text after each change."""
        self._state, self._read, self._lock = state, read, Lock()
        self._known = ""
        self._tokens: Mapping[str, StoredToken] = {}

    def find(self, digest: str, now: datetime) -> StoredToken | None:
        """Return the valid token with a digest. Raises DatabaseUnreachable."""
        with self._lock:
            state = self._state()
            if state != self._known:
                self._tokens = {token.sha256: token for token in self._read()}
                self._known = state
            token = self._tokens.get(digest)
        return token if token and token.is_valid(now) else None


class Access:
    """Tells who makes a request, by its token."""

    def __init__(self, local_token: str, tokens: TokenBook, proxy: TrustedProxy | None = None) -> None:
        """`local_token` is the one that the user of this process reads from a file."""
        self._local, self._tokens, self._proxy = digest_of(local_token), tokens, proxy
        self._failed = FailedLogins()

    def user_with(self, token: str, headers: Mapping[str, str], address: str) -> User:
        """Return the user with a token. Raises HTTPException: 401, or 429 for an address with too many wrong tokens."""
        digest = digest_of(token)
        if hmac.compare_digest(digest, self._local):
            return User(process_user(), Role.ADMIN)
        stored = self._tokens.find(digest, datetime.now(UTC))
        if stored is None:
            raise self._refuse(address)
        return self._named_by_proxy(headers) if stored.role is Role.PROXY else User(stored.user, stored.role)

    def _refuse(self, address: str) -> HTTPException:
        if wait_s := self._failed.record(address):
            return HTTPException(429, "too many wrong tokens from your address", {"Retry-After": str(wait_s)})
        return HTTPException(401, "the token is wrong, or it has expired", BEARER)

    def _named_by_proxy(self, headers: Mapping[str, str]) -> User:
        if self._proxy is None:
            raise HTTPException(401, "a proxy's token is good for nothing without HALOCTL_TRUSTED_PROXY", BEARER)
        name = headers.get(self._proxy.header, "")
        if not NAME.fullmatch(name):
            raise HTTPException(401, f"the proxy names no user in {self._proxy.header}", BEARER)
        return User(name, self._proxy.role)


def token_of(request: Request) -> str:
    """Return the token that a request brings in a header or a cookie; empty: none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")


def logged_in(request: Request) -> User:
    """Return who makes a request. Raises HTTPException: 401, 429, or 403 for one that another site makes."""
    token = token_of(request)
    if not token:
        raise HTTPException(401, "log in, or give a token as `Authorization: Bearer TOKEN`", BEARER)
    expect_same_site(request)
    access: Access = request.app.state.site.access
    return access.user_with(token, request.headers, request.client.host if request.client else "")


def expect_same_site(request: Request) -> None:
    """Raise HTTPException for a change that a page of another site asks a browser for.

    Browsers say where such a request comes from; what is no browser says nothing. See
    https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html
    """
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_same_origin = origin is None or urlsplit(origin).netloc == request.url.netloc
    if not (site in ("same-origin", "none") if site else is_same_origin):
        raise HTTPException(403, "the request comes from a page of another site")


def _expect(role: Role) -> Callable[[User], User]:
    def expect(user: Annotated[User, Depends(logged_in)]) -> User:
        if not user.role.includes(role):
            raise HTTPException(403, f"{user.name} is a {user.role}: this takes a {role}")
        return user

    return expect


ReaderUser = Annotated[User, Depends(logged_in)]
SubmitterUser = Annotated[User, Depends(_expect(Role.SUBMITTER))]
