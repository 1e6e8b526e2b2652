"""Fixtures: every test that takes `database_url`, `database` or `store` runs on SQLite and on Postgres."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from db.connection.engine import Database, open_database, upgrade
from db.store import Store
from tests import databases, side_by_side
from tests.flickers import FLICKERS
from tests.stored_jobs import NOON

os.environ.setdefault("HALOCTL_MAX_FOREIGN_CPU_PERCENT", "100")  # other tests run beside those that measure


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that are listed as flickering be tried twice, and no others."""
    for item in items:
        if item.nodeid.partition("[")[0] in FLICKERS:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the first failure of a test that passed on the second try, so that its cause can be found."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session")
def common_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that all workers of this run have in common."""
    return side_by_side.common_folder(request.config, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that has the schema and nothing else."""
    file = tmp_path_factory.mktemp("template") / "haloctl.db"
    upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.PostgresServer]:
    """A Postgres server for this run of the tests."""
    programs = databases.find_programs()
    if programs is None:
        pytest.skip("no Postgres server is installed (initdb is neither on PATH nor in /usr/lib/postgresql)")
    with databases.running_server(programs) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a fresh database for one test, with the schema and nothing else."""
    if request.param == "sqlite":
        context = databases.sqlite_file(request.getfixturevalue("sqlite_template"), tmp_path)
    else:
        context = request.getfixturevalue("postgres").new_database()
    with context as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database with nothing in it; on SQLite the file does not exist yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'haloctl.db'}"
    else:
        with request.getfixturevalue("postgres").new_database("template0") as url:
            yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with open_database(database_url, create=False) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
def clocked(database: Database) -> Store:
    """A store with a clock that advances a minute with every write and every snapshot, from noon."""
    minutes = iter(range(10_000))
    return Store(database, lambda: NOON + timedelta(minutes=next(minutes)))
