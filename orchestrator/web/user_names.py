"""The names and roles of users, as people and proxies give them."""

import os
import re
from dataclasses import dataclass

from db.writes.tokens import Role
from jobs.errors import BadSetting

PROXY_VARIABLE = "HALOCTL_TRUSTED_PROXY"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}", re.ASCII)
HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,60}", re.ASCII)


def expect_name(text: str, option: str) -> str:
    """Return a user's name; raises BadSetting for one that no user should have."""
    if not NAME.fullmatch(text):
        raise BadSetting(option, "a user's name has letters, digits, and . _ @ + - (at most 100)")
    return text


def expect_role(text: str, option: str = "--role") -> Role:
    """Return the role with a name; raises BadSetting."""
    try:
        return Role(text)
    except ValueError:
        raise BadSetting(option, f"{text!r} is no role: choose one of {', '.join(Role)}") from None


@dataclass(frozen=True)
class TrustedProxy:
    """The header in which a proxy that has a token of the role `proxy` names users, and the role that they have."""

    header: str
    role: Role


def trusted_proxy() -> TrustedProxy | None:
    """Read HALOCTL_TRUSTED_PROXY, `HEADER:ROLE`; None: it is not set. Raises BadSetting."""
    text = os.environ.get(PROXY_VARIABLE)
    if not text:
        return None
    header, _, role = text.partition(":")
    if not HEADER.fullmatch(header):
        raise BadSetting(PROXY_VARIABLE, f"{text!r} should be the name of a header and a role: X-Forwarded-User:reader")
    known_role = expect_role(role or Role.READER, PROXY_VARIABLE)
    if known_role is Role.PROXY:
        raise BadSetting(PROXY_VARIABLE, "users can't have the role proxy: choose reader, submitter or admin")
    return TrustedProxy(header, known_role)
