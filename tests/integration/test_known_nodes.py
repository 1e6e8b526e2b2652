"""Listing nodes only reads: it changes no row, and works for a read-only role."""

from pathlib import Path

import pytest
from sqlalchemy import make_url

from db.connection.engine import Database, open_database
from db.reads import machines
from db.store import Store
from jobs.task import Unfit
from orchestrator.context import Context
from orchestrator.executor import LOCAL_NODE
from orchestrator.known_nodes import list_nodes, record_local_node
from orchestrator.settings import Settings
from tests.databases import PostgresServer


def context_of(database: Database, folder: Path) -> Context:
    return Context(Settings(folder, "", None, folder / "artifacts"), database)


@pytest.fixture
def context(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("HALOCTL_CPU_DEVICES", "2")
    return context_of(database, tmp_path)


def test_listing_nodes_shows_this_machine_and_changes_no_row(context: Context) -> None:
    before = context.database.change_token()
    (node,) = list_nodes(context)
    assert (node.id, node.is_up, node.cordon) == (LOCAL_NODE, True, None)
    assert [(device.kind, device.index) for device in node.devices if device.kind == "cpu"] == [("cpu", 0), ("cpu", 1)]
    assert (machines.nodes(context.database), context.database.change_token()) == ([], before)


def test_what_was_decided_about_this_machine_is_listed_with_it(
    context: Context, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_local_node(context)
    (recorded,) = machines.nodes(context.database)
    store.quarantine([Unfit(LOCAL_NODE, "too warm"), Unfit(LOCAL_NODE, "wrong sums", "cpu", 1)])
    monkeypatch.setenv("HALOCTL_CPU_DEVICES", "1")
    (node,) = list_nodes(context)
    assert (node.first_seen_at, node.cordon_reason) == (recorded.first_seen_at, "too warm")
    reasons = {device.index: device.quarantine_reason for device in node.devices if device.kind == "cpu"}
    assert reasons == {0: None, 1: "wrong sums"}, "a quarantined device stays listed when it is gone"


def test_a_role_that_may_only_read_lists_nodes(postgres: PostgresServer, tmp_path: Path) -> None:
    with postgres.new_database() as url:
        reader = "nodes_reader"
        with open_database(url, create=False) as database, database.writing() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {reader} LOGIN PASSWORD 'reads'")
            connection.exec_driver_sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}")
        reader_url = make_url(url).set(username=reader, password="reads").render_as_string(hide_password=False)
        try:
            with open_database(reader_url, create=True) as database:
                assert [node.id for node in list_nodes(context_of(database, tmp_path))] == [LOCAL_NODE]
        finally:
            with open_database(url, create=False) as database, database.writing() as connection:
                connection.exec_driver_sql(f"DROP OWNED BY {reader}")
                connection.exec_driver_sql(f"DROP ROLE {reader}")
