"""Databases that can't be used: one clear message for each, and nothing half-written."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from db.connection.engine import Database, open_database, upgrade
from db.connection.errors import mask, parse
from db.reads import reports
from db.schema.tables import SCHEMA, VERSION_TABLE
from db.store import Store
from jobs.errors import BadSetting, DatabaseUnreachable, HaloError, SchemaNewer, SchemaOutdated
from tests.databases import PostgresServer
from tests.integration.disks import small_disk
from tests.stored_jobs import submit
from workers.agent.ports import free_port

__all__ = ["small_disk"]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("revision", "error", "advice"),
    [("0000", SchemaOutdated, "haloctl db upgrade"), ("9999", SchemaNewer, "upgrade haloctl")],
)
def test_another_schema_is_refused_with_what_to_do(
    database_url: str, revision: str, error: type[HaloError], advice: str
) -> None:
    _set_revision(database_url, revision)
    for create in (True, False):
        with pytest.raises(error, match=f"schema (is )?{revision}.*{SCHEMA}.*{advice}"):
            open_database(database_url, create=create)
    if error is SchemaNewer:
        with pytest.raises(error, match=advice):
            upgrade(database_url)


def _set_revision(url: str, revision: str) -> None:
    with Database(parse(url)) as database, database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = :revision"), {"revision": revision})


def test_what_was_never_made_is_not_made_by_asking(tmp_path: Path) -> None:
    file = tmp_path / "haloctl.db"
    with pytest.raises(DatabaseUnreachable, match="does not exist yet; `haloctl submit`"):
        open_database(f"sqlite:///{file}", create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_is_not_read(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "haloctl.db").touch()
    with pytest.raises(SchemaOutdated, match="it is empty; `haloctl db upgrade`"):
        open_database(empty_url, create=False)


def test_somebody_elses_database_is_left_alone(empty_url: str) -> None:
    with Database(parse(empty_url)) as database, database.writing() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR)"))
    for opening in (lambda: open_database(empty_url, create=True), lambda: upgrade(empty_url)):
        with pytest.raises(DatabaseUnreachable, match="tables of another program"):
            opening()
    with Database(parse(empty_url)) as database, database.writing() as connection:
        assert not connection.dialect.has_table(connection, "jobs")


def test_a_file_that_is_no_database_says_so_and_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "haloctl.db"
    file.write_text("hello " * 1000)
    for create in (True, False):
        with pytest.raises(DatabaseUnreachable, match=f"database {file}: that file is not a SQLite database"):
            open_database(f"sqlite:///{file}", create=create)
    assert file.read_text() == "hello " * 1000


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "haloctl.db"
    upgrade(f"sqlite:///{file}")
    with file.open("r+b") as opened:
        opened.seek(100)
        opened.write(b"\xff" * (file.stat().st_size - 100))
    with pytest.raises(DatabaseUnreachable, match=f"database {file}: the file is damaged; put a backup"):
        open_database(f"sqlite:///{file}", create=True)


def test_a_folder_in_the_files_place_says_so(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "missing" / "haloctl.db"):
        with pytest.raises(DatabaseUnreachable, match=f"database {file}: it can't be opened; check that its folder"):
            open_database(f"sqlite:///{file}", create=True)


def what_stops_filling(url: str, *before: str) -> str:
    """What a process that submits jobs without end says on stderr when it ends; `before` is put before its command."""
    command = [*before, sys.executable, "-m", "tests.fill_database", url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120).stderr.strip()


def test_a_file_that_may_not_grow_stops_with_one_message_and_keeps_what_it_had(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'haloctl.db'}"
    said = what_stops_filling(url, "prlimit", f"--fsize={1 << 20}")
    assert said.startswith(f"DatabaseUnreachable: database {tmp_path / 'haloctl.db'}: ")
    assert "the disk is full" in said
    assert said.count("\n") == 0
    with open_database(url, create=False) as database:
        assert all(job.tasks == 5 for job in reports.jobs(database))


def test_a_full_disk_stops_with_one_message_and_keeps_what_it_had(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk / 'haloctl.db'}"
    said = what_stops_filling(url)
    advice = "the disk is full; make room and run the command again"
    assert said == f"DatabaseUnreachable: database {small_disk / 'haloctl.db'}: {advice}"
    with sqlite3.connect(small_disk / "haloctl.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_disk_that_is_full_before_there_is_a_database_says_so(small_disk: Path) -> None:
    with (small_disk / "filler").open("wb") as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"\0" * (1 << 16))
            filler.flush()
    said = what_stops_filling(f"sqlite:///{small_disk / 'haloctl.db'}")
    assert said.startswith("DatabaseUnreachable: ")
    assert "the disk is full" in said
    (small_disk / "filler").unlink()
    with open_database(f"sqlite:///{small_disk / 'haloctl.db'}", create=True) as database:
        assert reports.jobs(database) == []


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "new"])
def test_a_folder_that_may_not_be_written_says_so(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if is_there:
        upgrade(f"sqlite:///{folder / 'haloctl.db'}")
        (folder / "haloctl.db").chmod(0o444)
    folder.chmod(0o555)
    # without its capabilities even root is refused
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    said = what_stops_filling(f"sqlite:///{folder / 'haloctl.db'}", *powerless)
    kind = "DatabaseReadOnly" if is_there else "DatabaseUnreachable"
    assert said.startswith(f"{kind}: database {folder / 'haloctl.db'}: it can't be ")
    assert said.count("\n") == 0


def test_a_server_that_is_not_there_says_so_without_the_password() -> None:
    url = f"postgresql://halo:s3cret@127.0.0.1:{free_port()}/halo"
    with pytest.raises(DatabaseUnreachable, match=r"postgresql\+psycopg://halo:\*\*\*@127.0.0.1.*refused") as caught:
        open_database(url, create=True)
    assert "s3cret" not in str(caught.value)


def test_a_database_that_a_server_lacks_says_so(postgres: PostgresServer) -> None:
    with pytest.raises(DatabaseUnreachable, match='database "nowhere" does not exist'):
        open_database(postgres.url("nowhere"), create=True)


def test_a_server_that_restarts_is_used_again(postgres: PostgresServer) -> None:
    with postgres.new_database() as url, open_database(url, create=False) as database:
        submit(Store(database))
        postgres.cut("pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
        submit(Store(database))
        assert len(reports.jobs(database)) == 2


@pytest.mark.parametrize(
    "url", ["mysql://a:s3cret@b/c", "s3cret", "sqlite://", "sqlite:///:memory:", "", "postgres//x:s3cret@y"]
)
def test_an_address_that_is_none_says_what_one_looks_like(url: str) -> None:
    with pytest.raises(BadSetting, match="should be sqlite:///FILE or postgresql://") as caught:
        open_database(url, create=True)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://a:b:c@h/d", "postgresql://a:***@h/d"),
        ("postgresql://a:p@ss@h/d", "postgresql://a:***@h/d"),
        ("postgresql://h/d?user=a&password=b&x=1", "postgresql://h/d?user=a&password=***&x=1"),
        ("postgresql://h/d", "postgresql://h/d"),
    ],
)
def test_passwords_are_masked_wherever_they_stand(url: str, shown: str) -> None:
    assert mask(url) == shown
