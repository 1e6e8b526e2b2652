"""What people ask for most reads no large table from end to end: the databases' own plans say so."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from db.connection.engine import Database
from db.reads.matrix import matrix
from db.reads.reports import jobs
from db.reads.run_filter import RunFilter
from db.reads.runs import runs
from tests.fill_measurements import fill
from tests.stored_jobs import NOON

LARGE = {"cells", "tasks", "attempts", "measurements", "artifacts", "events"}
MEASUREMENTS = 2000  #: two nights
VARIANT = "llama3.1-8B-FP16-TP8"

Statement = tuple[str, Any]


@pytest.fixture
def filled(database_url: str, database: Database) -> Database:
    fill(database_url, MEASUREMENTS)
    return database


@contextmanager
def noted() -> Iterator[list[Statement]]:
    """The statements that are carried out meanwhile."""
    found: list[Statement] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        found.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def read_from_end_to_end(database: Database, statements: list[Statement]) -> list[str]:
    """The large tables that some statement reads all of, each with how."""
    with database.reading() as connection:
        plan = _sqlite_scans if connection.dialect.name == "sqlite" else _postgres_scans
        asked = [one for one in statements if one[0].lstrip().upper().startswith(("SELECT", "WITH"))]
        assert asked
        return [found for statement, parameters in asked for found in plan(connection, statement, parameters)]


def _sqlite_scans(connection: Connection, statement: str, parameters: Any) -> Iterator[str]:
    for *_, step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
        words = step.split()
        if words[0] == "SCAN" and words[1] in LARGE:
            yield step


def _postgres_scans(connection: Connection, statement: str, parameters: Any) -> Iterator[str]:
    """Few rows it would rather read all: what is asked here is whether it must."""
    for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin"):
        connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
    (plan,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).one()
    nodes = [(json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node.get("Relation Name") in LARGE and "Index Cond" not in node:
            yield f"{node['Node Type']} on {node['Relation Name']}"


QUESTIONS: dict[str, Callable[[Database], Any]] = {
    "matrix": matrix,
    "matrix of some": lambda database: matrix(database, model="llama*", variant="*-TP8", toolchain="d*"),
    "matrix as it was": lambda database: matrix(database, before=NOON + timedelta(days=1)),
    "list": lambda database: jobs(database, 20),
    "trend": lambda database: runs(database, RunFilter(("ttft_ms", "itl_ms"), variant=VARIANT)),
    "compare": lambda database: runs(database, RunFilter(("ttft_ms",), variant="*8B*TP8", since=NOON)),
}


def test_no_large_table_is_read_from_end_to_end(filled: Database) -> None:
    for name, question in QUESTIONS.items():
        with noted() as statements:
            assert question(filled), name
        assert (name, read_from_end_to_end(filled, statements)) == (name, [])
    alike = "SELECT id FROM measurements WHERE unit = 'ms'", ()
    assert len(read_from_end_to_end(filled, [alike])) == 1


def test_runs_of_one_variant_are_found_from_its_attempts_where_a_database_keeps_no_counts(filled: Database) -> None:
    if filled.url.drivername != "sqlite":
        pytest.skip("a server counts, and chooses by that")
    with noted() as statements:
        assert runs(filled, RunFilter(("ttft_ms", "itl_ms"), variant=VARIANT))
    asked = [one for one in statements if "likelihood" in one[0]]
    assert len(asked) == 2
    with filled.reading() as connection:
        for statement, parameters in asked:
            plan = [step for *_, step in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            assert plan[0].startswith("SEARCH cells"), plan
            assert any("ix_measurements_attempt_metric" in step for step in plan), plan
