"""SQL of users, run so that it can only read the views of `db.query.views`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from db.connection.engine import Database
from db.query import postgres, sqlite
from db.query.errors import refused

MAX_SQL = 100_000  #: characters
UNSTORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query, and whether there were more."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    is_cut: bool


def query(database: Database, sql: str, *, limit: int, timeout_s: float) -> QueryResult:
    """Run one SELECT and return at most `limit` rows; raises BadSetting if it is no SELECT or reads more than views."""
    text = sql.strip().rstrip("; \n\t")
    if not text:
        raise refused("it is empty")
    if len(text) > MAX_SQL:
        raise refused(f"it is longer than {MAX_SQL} characters")
    if UNSTORABLE.search(text):
        raise refused("it has a character that no database takes")
    if database.url.drivername == "sqlite":
        columns, rows = sqlite.query(database.url, text, limit + 1, timeout_s)
    else:
        with database.session() as session:
            columns, rows = postgres.query(session, text, limit + 1, timeout_s)
    return QueryResult(tuple(columns), rows[:limit], len(rows) > limit)
