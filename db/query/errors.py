"""Errors of queries, with the names of existing views and columns."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from db.query.views import VIEWS, mentioned
from jobs.errors import BadSetting

QUERY = "query"

#: What SQLite and Postgres say of names that are not there.
NO_COLUMN = re.compile(r'no such column: (?:\w+\.)?(?P<lite>.+)|column (?:\w+\.)?"?(?P<post>[^"]+?)"? does not exist')
NO_RELATION = re.compile(r'no such table: (?:\w+\.)?(?P<lite>.+)|relation "(?:\w+\.)?(?P<post>.+)" does not exist')
#: What SQLite says of statements that are no SELECT.
NOT_READ = re.compile(r"not authorized|cannot modify \w+ because it is a view")


def refused(why: str, sql: str = "") -> BadSetting:
    """Return the error of a query that is wrong or asks for more than views, with the names of what `sql` mentions."""
    if missing := NO_COLUMN.search(why):
        views = mentioned(sql) or list(VIEWS)
        columns = dict.fromkeys(column for view in views for column in VIEWS[view].columns)
        known_columns = "; ".join(f"{view} has {', '.join(VIEWS[view].columns)}" for view in views)
        return BadSetting(QUERY, f"{why}{_meant(missing, columns)}; {known_columns}")
    if missing := NO_RELATION.search(why):
        return BadSetting(QUERY, f"{why}{_meant(missing, VIEWS)}; there are {', '.join(VIEWS)}")
    reason = "it does more than read views" if NOT_READ.fullmatch(why) else why
    return BadSetting(QUERY, f"{reason}; one SELECT over {', '.join(VIEWS)} is answered: see `haloctl query --views`")


def _meant(missing: re.Match[str], names: Iterable[str]) -> str:
    close = get_close_matches((missing["lite"] or missing["post"]).lower(), names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def too_large(limit_bytes: int) -> BadSetting:
    """Return the error of a query whose answer, or a value on the way to it, is too large."""
    return BadSetting(QUERY, f"the answer is larger than {limit_bytes >> 20} MiB; select less, or lower --limit")


def too_slow(timeout_s: float) -> BadSetting:
    """Return the error of a query that took too long."""
    return BadSetting(QUERY, f"not answered within {timeout_s:g} s; ask for less, or give it longer with --timeout")
