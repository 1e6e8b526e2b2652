"""Two servers: one with a filled database that tests only read, one with an empty database for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from db.connection.engine import open_database
from db.store import Store
from tests import databases
from tests.fill_measurements import first_night
from tests.integration.web.servers import WebServer, running
from tests.stored_jobs import NOON


@pytest.fixture(scope="package")
def filled(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """For reading only: four jobs, with a variant that fails."""
    data = tmp_path_factory.mktemp("filled")
    with databases.sqlite_file(sqlite_template, data) as url:
        with open_database(url, create=False) as database:
            first_night(Store(database, lambda: NOON))
        with running(url, data) as server:
            yield server


@pytest.fixture
def fresh(sqlite_template: Path, tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "models").mkdir()
    with (
        databases.sqlite_file(sqlite_template, tmp_path) as url,
        running(url, tmp_path, (tmp_path / "models",)) as server,
    ):
        yield server
