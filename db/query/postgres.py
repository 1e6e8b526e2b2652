"""Run a query on Postgres: in a read-only transaction, after the server has told what the query would touch.

Postgres has no authorizer, and a transaction that only reads may still call functions that end sessions, read the
server's files or take locks, or read passwords where the user is a superuser. So the server reads the query as a view's
text first, which runs nothing, and what it understood decides: relations must be views of ours, functions built in and
free of effects. That view is rolled back.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.dialects import postgresql

from db.query.errors import refused, too_large, too_slow
from db.query.views import VIEWS, create_statements, mentioned

ANSWER_BYTES = 1 << 26  #: as text
DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]

RELATION = re.compile(r":relid (\d+)")
FUNCTION = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)")
OPERATOR = re.compile(r":(?:opno|eqop|sortop) (\d+)|:opnos \(o ([\d ]+)\)")
FIRST_OF_USERS = 16384  #: ids below are what every server has built in

#: What depends on the session's time zone or settings, and on nothing else, among what is not immutable.
STABLE = (
    "age", "array_to_json", "array_to_string", "concat", "concat_ws", "date", "date_part", "date_trunc", "extract",
    "format", "generate_series", "json_agg", "json_build_array", "json_build_object", "json_object_agg", "jsonb_agg",
    "jsonb_build_array", "jsonb_build_object", "jsonb_object_agg", "now", "row_to_json", "timestamptz", "timezone",
    "to_char", "to_date", "to_json", "to_jsonb", "to_number", "to_timestamp",
)  # fmt: skip

NOT_ALLOWED = """
SELECT oid::regprocedure::text FROM pg_proc WHERE oid = ANY(%(ids)s) AND NOT (
    oid < %(first)s AND (provolatile = 'i' OR provolatile = 's' AND (
        proname = ANY(%(stable)s)
        OR oid IN (SELECT oprcode FROM pg_operator WHERE oid < %(first)s)
        OR oid IN (SELECT castfunc FROM pg_cast WHERE oid < %(first)s))))
ORDER BY 1
"""
OTHERS = "SELECT oid::regclass::text FROM pg_class WHERE oid = ANY(%s) AND relname <> ALL(%s) ORDER BY 1"
OURS = "SELECT oid FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relname = ANY(%s)"


def query(connection: Any, sql: str, limit: int, timeout_s: float) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and at most `limit` rows; raises BadSetting. The session can be used for nothing else then."""
    connection.execute("SELECT set_config('statement_timeout', %s, false)", [f"{timeout_s * 1e3:.0f}"])
    connection.execute("SET TIME ZONE 'UTC'")
    _make_views(connection, mentioned(sql))
    connection.commit()
    with _explained(sql, timeout_s):
        _check(connection, sql)
        connection.rollback()
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        columns = [column.name for column in connection.execute(_text(f"{_asked(sql)} LIMIT 0")).description or ()]
        with connection.cursor("asked") as cursor:  # DECLARE takes a SELECT only
            cursor.execute(_text(_limited(sql, len(columns))))
            rows = cursor.fetchmany(limit)
    connection.rollback()
    if any(total > ANSWER_BYTES for *_, total in rows):
        raise too_large(ANSWER_BYTES)
    return columns, [tuple(row[:-1]) for row in rows]


def _asked(sql: str) -> str:
    return f"SELECT * FROM (\n{sql}\n) AS asked"


def _limited(sql: str, column_count: int) -> str:
    """Return a query for the same rows in their order, with the bytes up to each, and without values beyond the limit.

    The server counts, because a client has to take a row of any size.
    """
    names = [f"c{number}" for number in range(column_count)]
    values = "".join(f"CASE WHEN total <= {ANSWER_BYTES} THEN {name} END, " for name in names)
    counted = "sum(octet_length(asked::text)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS total"
    source = f"SELECT *, {counted} FROM (\n{sql}\n) AS asked ({', '.join(names)})"
    return f"SELECT {values}total FROM ({source}) AS counted"


def _make_views(connection: Any, views: Sequence[str]) -> None:
    row = connection.execute("SELECT current_schema()").fetchone()
    for statement in create_statements(DIALECT, row[0] if row else "public", views):
        connection.execute(_text(statement))
    connection.execute("SET search_path = pg_temp, pg_catalog")
    connection.execute("SET cursor_tuple_fraction = 1")  # all rows are wanted, not the first few soon


def _check(connection: Any, sql: str) -> None:
    """Have the server understand a query, and refuse what it may not touch."""
    # In the extended protocol, which takes one statement: this one ends where it seems to.
    connection.cursor(binary=True).execute(_text(f"CREATE VIEW asked AS SELECT 1 FROM (\n{sql}\n) AS asked"))
    rule = connection.execute(
        "SELECT ev_action::text FROM pg_rewrite WHERE ev_class = 'pg_temp.asked'::regclass"
    ).fetchone()
    understood = rule[0] if rule else ""
    ours = {row[0] for row in connection.execute(OURS, [list(VIEWS)])}
    relations = [number for number in _numbers(RELATION, understood) if number not in ours]
    if relations:
        names = connection.execute(OTHERS, [relations, ["asked"]]).fetchall()
        if names:
            raise refused(f"{_listed(names)}: no view that may be asked")
    parameters = {"ids": _numbers(FUNCTION, understood), "first": FIRST_OF_USERS, "stable": list(STABLE)}
    names = connection.execute(NOT_ALLOWED, parameters).fetchall()
    if names:
        raise refused(f"{_listed(names)} may not be called: it does more than compute")
    if any(number >= FIRST_OF_USERS for number in _numbers(OPERATOR, understood)):
        raise refused("operators that are not built in may not be used")


def _numbers(pattern: re.Pattern[str], text: str) -> list[int]:
    numbers = (
        number for match in pattern.finditer(text) for group in match.groups() if group for number in group.split()
    )
    return sorted({int(number) for number in numbers} - {0})


def _listed(rows: Sequence[tuple[Any, ...]]) -> str:
    return ", ".join(row[0] for row in rows)


def _text(sql: str) -> bytes:
    return sql.encode()


@contextmanager
def _explained(sql: str, timeout_s: float) -> Iterator[None]:
    import psycopg

    try:
        yield
    except psycopg.errors.QueryCanceled as error:
        raise too_slow(timeout_s) from error
    except psycopg.Error as error:
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:  # the server is gone
            raise
        raise refused((error.diag.message_primary or str(error)).strip(), sql) from error
