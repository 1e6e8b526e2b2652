"""Who made each change is on record: the user of the process, and on Postgres that of the session."""

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from db.connection.engine import Database, open_database
from db.reads.user_requests import user_requests
from db.schema.actors import current_actor, format_actor, process_user
from db.store import Cordon, Store
from db.writes import pins, targets
from db.writes.changes import changes
from db.writes.targets import QuotedTarget
from jobs.task import GIB, Device, Node, Unfit
from tests.databases import USER, PostgresServer
from tests.stored_jobs import submit

ROLES = Path(__file__).parents[3] / "infra" / "postgres-roles.sql"


def session_user(database: Database) -> str | None:
    return None if database.url.drivername == "sqlite" else USER


def test_the_actor_is_the_processs_user_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    process_user.cache_clear()
    assert current_actor() == pwd.getpwuid(os.getuid()).pw_name


def test_an_actor_is_shown_with_the_sessions_user_where_that_is_another() -> None:
    assert format_actor("ada", None) == format_actor("ada", "ada") == "ada"
    assert format_actor("ada", "halo") == "ada (database user halo)"
    assert format_actor(None, None) == "somebody unknown"


def test_each_event_and_request_names_its_actor(database: Database, store: Store) -> None:
    job = submit(store)
    store.request_cancel(f"{job}-05")
    store.request_cancel(job)
    store.retry(job)
    requests = user_requests(database, job)
    assert [(request.request, request.tasks) for request in requests] == [
        ("submitted", 0), ("cancelled", 1), ("cancelled", 4), ("retried", 5),
    ]  # fmt: skip
    assert {(request.actor, request.database_user) for request in requests} == {
        (current_actor(), session_user(database))
    }
    assert [request.request for request in user_requests(database, job, f"{job}-01")] == [
        "submitted", "cancelled", "retried",
    ]  # fmt: skip


def test_changes_that_move_no_task_are_on_record(database: Database, store: Store) -> None:
    node = Node("a", "a", 4, GIB, (Device("cpu", 0),))
    for up in ([node], [node], [], [], [node]):
        store.record_nodes(up)
    store.cordon_node("a", Cordon.DRAINING, "new driver")
    store.uncordon_node("a")
    store.quarantine([Unfit("a", "too warm", "cpu", 0)])
    store.release("a", "cpu", 0)
    pins.pin(database, "0" * 64, "the paper's", "ada")
    assert pins.unpin(database, "0" * 64)
    assert not pins.unpin(database, "0" * 64)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    targets.keep(database, [QuotedTarget("v", "", "itl_ms", None, None, None, 9.5, "ms", "CI", "ada", since)])
    made = changes(database)
    assert [(change.action, change.subject, change.detail) for change in made] == [
        *[(action, "a", "") for action in ("up", "down", "up")],
        ("drain", "a", "new driver"),
        ("resume", "a", ""),
        ("quarantine", "a/cpu:0", "too warm"),
        ("release", "a/cpu:0", ""),
        ("pin", "0" * 64, "the paper's"),
        ("unpin", "0" * 64, ""),
        ("set target", "v itl_ms", "9.5 ms, CI"),
    ]
    assert {(change.actor, change.database_user) for change in made} == {(current_actor(), session_user(database))}


def test_a_writer_changes_neither_the_record_nor_the_name_of_its_session(postgres: PostgresServer) -> None:
    with postgres.new_database() as url:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as owner:
            owner.execute(ROLES.read_bytes())
            owner.execute(ROLES.read_bytes())  # again, as after an upgrade
            owner.execute("DROP ROLE IF EXISTS bob")
            owner.execute("CREATE ROLE bob LOGIN IN ROLE haloctl_writer")
        try:
            with open_database(url.replace(f"{USER}@", "bob@"), create=True) as database:
                store = Store(database)
                job = submit(store)
                store.request_cancel(job)
                pins.pin(database, "0" * 64, "why", "bob")
                assert [request.database_user for request in user_requests(database, job)] == ["bob", "bob"]
                assert [change.database_user for change in changes(database)] == ["bob"]
                for forged in (
                    "UPDATE events SET actor = 'eve'",
                    "UPDATE changes SET actor = 'eve'",
                    "DELETE FROM changes",
                    "INSERT INTO changes (at, actor, database_user, action, subject, detail) "
                    "VALUES (now(), 'eve', 'eve', 'pin', '', '')",
                    "UPDATE haloctl_schema SET version_num = '0001'",
                    "CREATE TABLE mine (x int)",
                ):
                    with pytest.raises(Exception, match="permission denied"), database.writing() as connection:
                        connection.execute(text(forged))
        finally:
            with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as owner:
                owner.execute("DROP OWNED BY bob")
                owner.execute("DROP ROLE bob")
