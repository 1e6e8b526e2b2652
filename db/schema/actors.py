"""Who makes changes: the user of the process, by the operating system and not by what the environment says.

A server names the user whom it has authenticated for each request instead.
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_acting: ContextVar[str | None] = ContextVar("acting", default=None)


def current_actor() -> str:
    """Return the name of the user for whom this code runs."""
    return _acting.get() or process_user()


@contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Name another user for the changes that this thread or task makes while the context lasts."""
    token = _acting.set(user)
    try:
        yield
    finally:
        _acting.reset(token)


@cache
def process_user() -> str:
    """Return the name of the user that this process runs as, or `uid 1234` where no name is known."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def format_actor(actor: str | None, database_user: str | None) -> str:
    """Return who made a change, with the user of the database's session where that is another name."""
    if not actor:
        return "somebody unknown"
    return f"{actor} (database user {database_user})" if database_user not in (None, actor) else actor
