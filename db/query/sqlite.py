"""A query on SQLite: a read-only file, and an authorizer that lets it read what the views read, and nothing else."""

import marshal
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from sqlalchemy.dialects import sqlite

from db.connection.errors import BUSY_TIMEOUT_S
from db.query import sqlite_program
from db.query.errors import refused, too_large, too_slow
from db.query.views import VIEWS, create_statements, mentioned

MARGIN_S = 5.0  #: until a process that has not ended in its time is killed


def query(url: URL, sql: str, limit: int, timeout_s: float) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and at most `limit` rows; raises BadSetting."""
    views = mentioned(sql)
    request: sqlite_program.Request = {
        "uri": f"{Path(str(url.database)).absolute().as_uri()}?mode=ro",
        "statements": list(create_statements(sqlite.dialect(), "main", views)),
        "views": list(views),
        "all_views": list(VIEWS),
        "sql": sql,
        "limit": limit,
        "timeout_s": timeout_s,
        "busy_timeout_s": BUSY_TIMEOUT_S,
    }
    kind, *content = _run(request, timeout_s)
    if kind == "too large":
        raise too_large(sqlite_program.ANSWER_BYTES)
    if kind == "error":
        raise refused(content[0], sql)
    columns, rows = content
    return columns, rows


def _run(request: sqlite_program.Request, timeout_s: float) -> list[Any]:
    """Run the program; a signal ends it where it is over its time, or over its memory and can't say so."""
    command = [sys.executable, "-I", "-S", sqlite_program.__file__]
    try:
        process = subprocess.run(
            command, input=marshal.dumps(dict(request)), capture_output=True, timeout=timeout_s + MARGIN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise too_slow(timeout_s) from error
    if process.returncode == -signal.SIGALRM:
        raise too_slow(timeout_s)
    if process.returncode < 0:
        raise too_large(sqlite_program.ANSWER_BYTES)
    if process.returncode:
        raise RuntimeError(process.stderr.decode(errors="replace"))
    answer: list[Any] = marshal.loads(process.stdout)
    return answer
