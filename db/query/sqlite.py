"""A query on SQLite: a read-only file, and an authorizer that lets it read what the views read, and nothing else."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from sqlalchemy.dialects import sqlite

from db.connection.errors import BUSY_TIMEOUT_S
from db.query.errors import refused, too_slow
from db.query.views import VIEWS, create_statements, mentioned

STEPS = 10_000  #: of SQLite's machine between two looks at the clock
MOST_BYTES = 1 << 26  #: of one value
MOST_MEMORY_BYTES = 1 << 30

#: Functions that reach out of the database.
OUTSIDE = frozenset({"load_extension", "fts3_tokenizer"})
#: What a query may do beside reading; the value of a table-valued function is its caller's own.
HARMLESS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})

Read = tuple[str | None, str | None, str | None]


def query(url: URL, sql: str, limit: int, timeout_s: float) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and at most `limit` rows; raises BadSetting."""
    with closing(_connect(Path(str(url.database)))) as connection:
        views = mentioned(sql)
        for statement in create_statements(sqlite.dialect(), "main", views):
            connection.execute(statement)
        readable = _read_by(connection, views)
        connection.set_authorizer(lambda *access: _decide(readable, *access))
        with _explained(connection, sql, timeout_s):
            cursor = connection.execute(sql)
            return [column[0] for column in cursor.description or ()], cursor.fetchmany(limit)


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
    for setting in ("temp_store = MEMORY", "trusted_schema = OFF", f"hard_heap_limit = {MOST_MEMORY_BYTES}"):
        connection.execute(f"PRAGMA {setting}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _read_by(connection: sqlite3.Connection, views: Sequence[str]) -> set[Read]:
    """Return the columns that views read. A name alone proves nothing: a WITH may use a view's."""
    read: set[Read] = set()

    def note(action: int, table: str | None, column: str | None, schema: str | None, _: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            read.add((schema, table, column))
        return sqlite3.SQLITE_OK

    for name in TABLE_FUNCTIONS:  # they make themselves known at their first use
        connection.execute(f"SELECT * FROM {name}('[]')")
    connection.set_authorizer(note)
    for name in views:
        connection.execute(f"SELECT * FROM {name} LIMIT 0")
    connection.set_authorizer(None)
    connection.execute("PRAGMA query_only = ON")
    return read


def _decide(
    readable: set[Read], action: int, first: str | None, second: str | None, schema: str | None, view: str | None
) -> int:
    if action in HARMLESS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in OUTSIDE else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and _may_be_read(readable, first, second, schema, view):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _may_be_read(
    readable: set[Read], table: str | None, column: str | None, schema: str | None, view: str | None
) -> bool:
    if schema == "main" and table in TABLE_FUNCTIONS:
        return True
    if not column:  # only how many rows there are; what a WITH names is in no schema
        return schema is None or (schema, table) in {known[:2] for known in readable}
    return (schema, table, column) in readable and (schema == "temp" or view in VIEWS)


@contextmanager
def _explained(connection: sqlite3.Connection, sql: str, timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            raise too_slow(timeout_s) from error
        raise refused(str(error), sql) from error
