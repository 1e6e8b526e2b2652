"""Runs a query on a SQLite database, as a process of its own: nothing in SQLite can outlive its time or memory.

A single function, such as LIKE or instr, may compute for hours without asking whether it may go on, and every row may
hold a large value. So the kernel ends the process at its time, and limits its memory. The standard library is all that
this program imports: it starts in a few hundredths of a second.

Standard input is a request in marshal's format (`Request`), standard output the answer: ["rows", columns, rows],
["error", message] or ["too large"].
"""

import marshal
import resource
import signal
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any, TypedDict

MEMORY_BYTES = 1 << 30  #: of the process
HEAP_BYTES = 1 << 29  #: of SQLite
VALUE_BYTES = 1 << 24  #: of one value
ANSWER_BYTES = 1 << 26
BASE_BYTES = 64  #: about what a value takes in memory beside its text

#: Functions that reach out of the database.
OUTSIDE = frozenset({"load_extension", "fts3_tokenizer"})
#: What a query may do beside reading; the value of a table-valued function is its caller's own.
HARMLESS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
TABLE_FUNCTIONS = frozenset({"json_each", "json_tree"})

Read = tuple[str | None, str | None, str | None]


class Request(TypedDict):
    """What to run, and on what."""

    uri: str  #: of the file, read-only
    statements: list[str]  #: that create the views
    views: list[str]  #: that the query mentions
    all_views: list[str]
    sql: str
    limit: int  #: rows
    timeout_s: float
    busy_timeout_s: float


class TooLarge(Exception):
    """An answer of more than ANSWER_BYTES."""


def main() -> None:
    """Answer the request on standard input."""
    request: Request = marshal.load(sys.stdin.buffer)  # of the process that started this one
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])  # which ends the process, whatever it does
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        answer = marshal.dumps(_answer(request))
    except MemoryError:
        answer = marshal.dumps(["too large"])
    sys.stdout.buffer.write(answer)


def _answer(request: Request) -> list[Any]:
    try:
        return ["rows", *_rows(request)]
    except TooLarge:
        return ["too large"]
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a NUL in the text
        is_too_large = getattr(error, "sqlite_errorname", "") == "SQLITE_TOOBIG"
        return ["too large"] if is_too_large else ["error", str(error)]


def _rows(request: Request) -> tuple[list[str], list[tuple[Any, ...]]]:
    connection = _connect(request)
    for statement in request["statements"]:
        connection.execute(statement)
    readable, all_views = _read_by(connection, request["views"]), frozenset(request["all_views"])
    connection.set_authorizer(lambda *access: _decide(readable, all_views, *access))
    cursor = connection.execute(request["sql"])
    rows: list[tuple[Any, ...]] = []
    size_bytes = 0
    for row in cursor:
        size_bytes += _size_bytes(row)
        if size_bytes > ANSWER_BYTES:
            raise TooLarge
        rows.append(row)
        if len(rows) == request["limit"]:
            break
    return [column[0] for column in cursor.description or ()], rows


def _connect(request: Request) -> sqlite3.Connection:
    connection = sqlite3.connect(request["uri"], uri=True, timeout=request["busy_timeout_s"])
    connection.text_factory = lambda text: text.decode(errors="replace")
    for setting in ("temp_store = MEMORY", "trusted_schema = OFF", f"hard_heap_limit = {HEAP_BYTES}"):
        connection.execute(f"PRAGMA {setting}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _size_bytes(row: tuple[Any, ...]) -> int:
    return sum(BASE_BYTES + (len(value) if isinstance(value, str | bytes) else 0) for value in row)


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
    readable: set[Read],
    views: frozenset[str],
    action: int,
    first: str | None,
    second: str | None,
    schema: str | None,
    view: str | None,
) -> int:
    if action in HARMLESS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in OUTSIDE else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and _may_be_read(readable, views, first, second, schema, view):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _may_be_read(
    readable: set[Read],
    views: frozenset[str],
    table: str | None,
    column: str | None,
    schema: str | None,
    view: str | None,
) -> bool:
    if schema == "main" and table in TABLE_FUNCTIONS:
        return True
    if not column:  # only how many rows there are; what a WITH names is in no schema
        return schema is None or (schema, table) in {known[:2] for known in readable}
    return (schema, table, column) in readable and (schema == "temp" or view in views)


if __name__ == "__main__":
    main()
