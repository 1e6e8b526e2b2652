"""A user whose role may only read: every reading command answers, and what would write is refused in one line."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from db.connection.engine import open_database
from db.store import Store
from jobs.task import GIB, Device, Node
from tests.databases import USER, PostgresServer
from tests.integration.commands.in_process import Command, haloctl
from tests.stored_jobs import start, submit, succeed

__all__ = ["haloctl"]

ROLES = Path(__file__).parents[3] / "infra" / "postgres-roles.sql"


@pytest.fixture
def job(haloctl: Command, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job in a database that the command line may only read from now on."""
    with postgres.new_database() as url:
        with open_database(url, create=False) as database:
            store = Store(database, lambda: datetime.now(UTC))
            store.record_nodes([Node("a", "a", 4, GIB, (Device("cpu", 0),))])
            job = submit(store)
            for number in (1, 2, 3):
                succeed(store, f"{job}-0{number}")
            start(store, f"{job}-04")
        owner = url.replace("+psycopg", "")
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(ROLES.read_bytes())
            connection.execute("DROP ROLE IF EXISTS alice")
            connection.execute("CREATE ROLE alice LOGIN IN ROLE haloctl_reader")
        monkeypatch.setenv("HALOCTL_DATABASE_URL", url.replace(f"{USER}@", "alice@"))
        try:
            yield job
        finally:
            with psycopg.connect(owner, autocommit=True) as connection:
                connection.execute("DROP ROLE alice")


def test_reading_commands_need_no_more_than_the_readers_role(haloctl: Command, job: str) -> None:
    for command in (
        ("list",),
        ("show", job),
        ("show", f"{job}-01"),
        ("matrix", job),
        ("results",),
        ("trend", "itl_ms"),
        ("why", f"{job}-01"),
        ("reproduce", f"{job}-01"),
        ("nodes",),
        ("nodes", "check"),
        ("artifacts", "list"),
        ("toolchains",),
        ("targets",),
        ("schedule",),
        ("db", "check"),
        ("db", "export", "all.gz"),
        ("query", "SELECT job, done FROM jobs"),
        ("query", "SELECT count(*) FROM changes"),
        ("report", "--output", "report.html"),
        ("usage", "--by", "node"),
        ("logs", f"{job}-04"),
    ):
        done = haloctl(*command)
        assert (done.code, "Traceback" in done.err) == (0, False), (command, done)


@pytest.mark.parametrize(
    "command",
    [
        ("cancel", "JOB"),
        ("retry", "JOB"),
        ("targets", "set", "v", "itl_ms", "1", "--source", "x"),
        ("nodes", "drain", "a"),
        ("nodes", "quarantine", "a", "--why", "x"),
        ("query", "SELECT * FROM pg_authid"),
    ],
)
def test_what_would_write_is_refused_in_one_line(haloctl: Command, job: str, command: tuple[str, ...]) -> None:
    done = haloctl(*(job if word == "JOB" else word for word in command))
    assert done.code in (2, 6)
    assert "Traceback" not in done.err
    assert "permission denied" in done.err or "no view" in done.err
