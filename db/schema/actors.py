"""Who makes changes: the user whose process it is, by the operating system and not by what the environment says."""

import os
import pwd
from functools import cache


@cache
def current_actor() -> str:
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
