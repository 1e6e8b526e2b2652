"""Whole databases exported and imported: nothing is lost, and nothing but a whole one is taken."""

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Column, Float, Integer, String, Table, insert, select

from db.connection.engine import Database, open_database
from db.reads import audit
from db.schema import tables
from db.schema.tables import UtcDateTime
from db.store import Store
from db.writes import transfer
from jobs.axis_words import WORDS_OF_AXES
from jobs.errors import FileError, NotEmpty
from orchestrator.imports import database_files
from tests import databases
from tests.stored_jobs import everything, submit, succeed

#: What gets lost first, by the type of its column.
AWKWARD: dict[type, list[Any]] = {
    UtcDateTime: [
        datetime(2024, 10, 25, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=-5))),
    ],
    JSON: [{"b": [1, 2.5, None, True], "a": {"é\n": "\u0000 \ud800"}}, [2**70, 1e-320, 0.1 + 0.2], "text", {}],
    Boolean: [True, False],
    Float: [0.1 + 0.2, 1e308, 5e-324, -0.0, 3.0],
    String: ["", "'; DROP TABLE jobs; --\t\r\n\\", "ß-日本-🙂", "null"],
}
ARTIFACT = {"name": "model.mlir", "kind": "mlir", "sha256": "0" * 64, "size_bytes": 1}
#: Of the columns whose values have to mean something.
MEANINGFUL: dict[str, list[Any]] = {
    "jobs.model_facts": [{"é": [2**70, "\u0000"]}],
    "jobs.spec": [{}, {"name": "\ud800"}],
    "tasks.stage": ["export"],
    "tasks.state": ["pending", "failed"],
    "tasks.settings": [{"b": [1, 2.5, None, True]}],
    "tasks.needs": [[], ["a-01"]],
    "tasks.resources": [{}, {"cpus": 2}],
    "tasks.pin": [{"node": "n", "devices": [0]}],
    "tasks.failure": [{"kind": "bad_input", "message": "ß", "log_tail": ""}],
    "attempts.lock": ["", "0" * 64],
    "attempts.inputs": [{}, {"export": [ARTIFACT]}],
    "attempts.places": [[], [{"node": "n", "devices": [{"kind": "cpu", "index": 0}]}]],
    "attempts.commands": [[], [{"argv": ["python"], "env": {"A": "\n"}}]],
    "attempts.processes": [[], [{"argv": ["a"], "exit_code": -9, "wall_s": 0.1, "peak_rss_bytes": 1}]],
    "attempts.environment": [{}, {"A": "ß"}],
    "attempts.versions": [{}],
    "attempts.warnings": [[], ["1 of 2"]],
    "attempts.failure_kind": ["node_lost"],
    "cells.stage": ["export"],
    **{f"cells.{axis}": [*words] for axis, words in WORDS_OF_AXES.items()},
    "measurements.metric": ["ttft_ms"],
    "targets.metric": ["itl_ms"],
    "artifacts.sha256": ["0" * 64, "f" * 64],
    "measurements.samples": [[1, 2.5, 0.1 + 0.2, 1e-320]],
    "measurements.context": [{"batch": 1}],
    "events.from_state": ["pending"],
    "events.to_state": ["queued"],
    "durations.recent_s": [[], [0.1]],
    "nodes.versions": [{}],
    "nodes.checks": [[]],
    "nodes.toolchains": [{}],
    "toolchains.lines": [["torch==2.8"]],
    "toolchains.versions": [{"torch": "2.8"}],
    "pins.sha256": ["0" * 63 + digit for digit in "01234"],
    "schedules.spec": [{}],
    "schedules.model_facts": [{}],
}
NAMES = ("jobs.id", "tasks.id", "attempts.id", "artifacts.name", "toolchains.digest")  #: parts of paths
INTEGERS = [0, 1, 2**31 - 1]
BIG_INTEGERS = [2**53 + 1, 2**63 - 1, 0]
ROWS = 5


def value_of(column: Column[Any], number: int) -> Any:
    """The `number`th value of a column: unlike others in a key, an earlier row's for a reference, now and then none."""
    if column.foreign_keys:
        (key,) = column.foreign_keys
        return value_of(key.column, number)
    kind = column.type
    if str(column) in NAMES:
        return f"k{number}-01"
    if str(column) in MEANINGFUL and not (column.nullable and number % 3 == 0):
        values = MEANINGFUL[str(column)]
        return values[number % len(values)]
    if column.primary_key:
        return number + 1 if isinstance(kind, Integer) else f"k{number}-{AWKWARD[String][number % 4][:3]}"
    if column.nullable and number % 3 == 0:
        return None
    if isinstance(kind, Integer):
        values = BIG_INTEGERS if "BIGINT" in str(kind) else INTEGERS
    else:
        own = getattr(kind, "impl", kind)
        values = next(found for type_, found in AWKWARD.items() if isinstance(kind, type_) or isinstance(own, type_))
    return values[number % len(values)]


def fill(database: Database) -> None:
    """Rows in every table that is exported, whatever they mean."""
    with database.writing() as connection:
        for table in tables.TRANSFERRED:
            rows = [{column.name: value_of(column, number) for column in table.columns} for number in range(ROWS)]
            for row in rows:
                connection.execute(insert(table), [row])


Opener = Callable[[str], Database]


@pytest.fixture
def empty(request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path) -> Iterator[Opener]:
    """Opens a new empty database of the kind that it is asked for."""
    with ExitStack() as stack:
        count = 0

        def opened(kind: str) -> Database:
            nonlocal count
            count += 1
            folder = tmp_path / str(count)
            folder.mkdir()
            made = (
                databases.sqlite_file(sqlite_template, folder)
                if kind == "sqlite"
                else request.getfixturevalue("postgres").new_database()
            )
            return stack.enter_context(open_database(stack.enter_context(made), create=False))

        yield opened


def test_every_row_survives_the_way_from_sqlite_to_postgres_and_back(empty: Opener, tmp_path: Path) -> None:
    first, second, third = empty("sqlite"), empty("postgres"), empty("sqlite")
    fill(first)
    rows = everything(first)
    transferred = dict.fromkeys([table.name for table in tables.TRANSFERRED], ROWS)
    assert {name: len(found) for name, found in rows.items() if name != "tokens"} == transferred
    for number, (source, goal) in enumerate([(first, second), (second, third)]):
        file = tmp_path / f"{number}.jsonl.gz"
        assert database_files.write(source, file) == ROWS * len(transferred)
        assert database_files.read(goal, file) == transferred
        assert everything(goal) == rows
    assert (
        list(transfer.export_lines(first)) == list(transfer.export_lines(second)) == list(transfer.export_lines(third))
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_work_goes_on_in_an_imported_database(empty: Opener, kind: str) -> None:
    origin, goal = empty("sqlite"), empty(kind)
    succeed(Store(origin), f"{submit(Store(origin))}-01")
    transfer.import_lines(goal, "x", transfer.export_lines(origin))
    succeed(Store(goal), f"{submit(Store(goal))}-01")
    assert list(audit.violations(goal)) == []
    with goal.reading() as connection:
        numbers = list(connection.scalars(select(tables.events.c.id).order_by(tables.events.c.id)))
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_database_that_holds_something_is_left_alone(database: Database) -> None:
    lines = list(transfer.export_lines(database))
    submit(Store(database))
    before = everything(database)
    with pytest.raises(NotEmpty, match="already has jobs"):
        transfer.import_lines(database, "x", lines)
    assert everything(database) == before


def changed(table: Table, column: str, value: Any) -> Callable[[list[str]], list[str]]:
    """The lines with another value in the last row of a table."""

    def change(lines: list[str]) -> list[str]:
        index = max(index for index, line in enumerate(lines) if line.startswith(f'["{table.name}"'))
        row = json.loads(lines[index])
        row[[one.name for one in table.columns].index(column) + 1] = value
        return [*lines[:index], json.dumps(row), *lines[index + 1 :]]

    return change


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda lines: [], "x:1: is not a database"),
        (lambda lines: ["{}", *lines[1:]], "x:1: format: is not a database"),
        (lambda lines: [lines[0].replace(tables.SCHEMA, "0001"), *lines[1:]], "x:1: schema: is 0001, and this haloctl"),
        (lambda lines: lines[:-1], "x: ends too early"),
        (lambda lines: [*lines[:-2], lines[-1]], "rows: counts others than there are"),
        (lambda lines: [*lines, lines[2]], "comes after the end"),
        (lambda lines: [*lines[:2], "[", *lines[2:]], "x:3: is no row"),
        (lambda lines: [*lines[:2], '["nothing", 1]', *lines[2:]], "which there is not"),
        (lambda lines: [*lines[:2], '["jobs", 1]', *lines[2:]], "jobs: has 1 values"),
        (changed(tables.tasks, "epoch", "one"), "tasks.epoch: can't be that: it is 'one'"),
        (changed(tables.tasks, "epoch", True), "tasks.epoch: can't be that: it is True"),
        (changed(tables.tasks, "settings", "{"), "tasks.settings: "),
        (changed(tables.events, "at", "noon"), "events.at: "),
        (changed(tables.tasks, "job", "nobody"), "tasks can't be stored"),
        (changed(tables.tasks, "stage", None), "tasks can't be stored"),
    ],
)
def test_what_is_not_a_whole_database_is_not_taken_at_all(
    empty: Opener, spoil: Callable[[list[str]], list[str]], said: str
) -> None:
    for kind in ("sqlite", "postgres") if "stored" in said else ("sqlite",):
        goal = empty(kind)
        with pytest.raises(FileError) as told:
            transfer.import_lines(goal, "x", spoil(list(LINES)))
        assert said in str(told.value)
        assert not any(everything(goal).values())


def test_a_damaged_file_is_told(empty: Opener, tmp_path: Path) -> None:
    database = empty("sqlite")
    whole, cut = tmp_path / "whole.gz", tmp_path / "cut.gz"
    whole.write_bytes(gzip.compress("".join(LINES).encode()))
    cut.write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "plain.gz").write_text("plain")
    for name in ("cut.gz", "plain.gz", "none"):
        with pytest.raises(FileError, match=name):
            database_files.read(database, tmp_path / name)
    assert not any(everything(database).values())
    database_files.read(database, whole)


@pytest.fixture(scope="module", autouse=True)
def _lines(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A small database's lines, for tests that spoil them."""
    with (
        databases.sqlite_file(sqlite_template, tmp_path_factory.mktemp("origin")) as url,
        open_database(url, create=False) as origin,
    ):
        succeed(Store(origin), f"{submit(Store(origin))}-01")
        LINES[:] = transfer.export_lines(origin)


LINES: list[str] = []
