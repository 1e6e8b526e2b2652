"""Migrations from each earlier schema, with rows in it, on real databases: nothing is lost, all of it reads right."""

import json
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, text

from db import audit, reports, schema
from db.engine import Database, open_database, upgrade
from db.faults import parse
from db.identities import made
from db.results import artifacts, results
from db.store import Store
from db.tables import SCHEMA
from jobs.errors import SchemaOutdated
from jobs.state import TaskState
from jobs.task import Device
from jobs.variants import Attention, Precision
from tests.stored_jobs import NOON, give_back, open_task, start, succeed

OLD = "0a0a0a0a"
DEVICES = [{"kind": "cpu", "index": 3, "serial": "s3", "memory_bytes": 0}]
IDENTITY = {"stage": "export", "settings": {"tp": 1}}

JOB: dict[str, Any] = {
    "id": OLD,
    "name": "old",
    "model": "tiny-llama",
    "model_facts": {"text": "tiny-llama", "name": "tiny-llama", "digest": "d" * 64, "parameters": 1},
    "spec": {"name": "old", "model": "tiny-llama"},
    "submitted_by": "ada",
    "submitted_at": NOON,
    "timeout_s": 60.0,
    "reuse": True,
}
#: Task 01 succeeded at its second attempt, 02 was handed back and runs, 03 waits for it.
TASKS = [
    {"state": "succeeded", "epoch": 2, "tries": 2, "attempt": f"{OLD}-01-2", "needs": []},
    {"state": "running", "epoch": 2, "tries": 1, "attempt": f"{OLD}-02-2", "needs": [f"{OLD}-01"]},
    {"state": "pending", "epoch": 0, "tries": 0, "attempt": None, "needs": [f"{OLD}-02"]},
]
ATTEMPTS = [
    ("01", 1, "failed", "node_lost"),
    ("01", 2, "succeeded", None),
    ("02", 1, "failed", "handed_back"),
    ("02", 2, None, None),
]
EVENTS = [
    (None, None, None, None),
    ("01", None, "pending", "queued"),
    ("01", "01-1", "queued", "running"),
    ("01", "01-1", "running", "queued"),
    ("01", "01-2", "queued", "running"),
    ("01", "01-2", "running", "succeeded"),
    ("02", None, "pending", "queued"),
    ("02", "02-1", "queued", "running"),
    ("02", "02-1", "running", "queued"),
    ("02", "02-2", "queued", "running"),
]


def insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    """Values as an older haloctl bound them: JSON as text, times in the database's own way."""
    values = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
    if connection.dialect.name == "sqlite":
        values = {name: f"{value:%Y-%m-%d %H:%M:%S.%f}" if value is NOON else value for name, value in values.items()}
    names = ", ".join(f'"{name}"' for name in values)
    connection.execute(
        text(f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in values)})"), values
    )


def fill(connection: Connection, revision: str) -> None:
    """Rows as that schema had them."""
    insert(connection, "jobs", JOB)
    for number, task in enumerate(TASKS, 1):
        row = {"id": f"{OLD}-0{number}", "job": OLD, "stage": "export", "subject": "x", "target": "cpu", **task}
        empty = {"settings": {"tp": 1}, "resources": {"cpus": 1, "devices": 1, "device_kind": "cpu"}, "is_stuck": False}
        insert(connection, "tasks", _as_of(revision, row | empty))
        cell = {
            "job": OLD,
            "position": 0,
            "variant": "v",
            "target": "cpu",
            "stage": f"s{number}",
            "precision": Precision.F16,
        }
        cell |= {"attention": Attention.SDPA, "tp": 1, "task": row["id"], "is_first": True}
        insert(
            connection, "cells", cell | ({"model": "tiny-llama", "submitted_at": NOON} if revision >= "0005" else {})
        )
    for owner, epoch, outcome, kind in ATTEMPTS:
        row = {
            "id": f"{OLD}-{owner}-{epoch}",
            "task": f"{OLD}-{owner}",
            "epoch": epoch,
            "node": "a",
            "devices": DEVICES,
            "commands": [{"argv": ["true"], "env": {}}],
            "inputs": {},
            "digest": "f" * 64,
            "toolchain": "default",
            "versions": {"torch": "2"},
            "host_cpu": "znver4",
            "environment": {},
            "timeout_s": 60.0,
            "started_at": NOON,
            "ended_at": NOON if outcome else None,
            "outcome": outcome,
            "failure_kind": kind,
            "failure_message": kind and "why",
            "warnings": [],
            "processes": [],
        }
        insert(connection, "attempts", _as_of(revision, row | ({"identity": IDENTITY} if revision >= "0002" else {})))
    made = {"attempt": f"{OLD}-01-2", "name": "model.mlir", "kind": "mlir", "sha256": "1" * 64, "size_bytes": 1 << 40}
    insert(connection, "artifacts", made)
    measured = {"id": 1, "attempt": f"{OLD}-01-2", "metric": "trace_s", "unit": "s", "median": 2.0, "samples": [2.0]}
    insert(connection, "measurements", {**measured, "context": {}})
    for event, (named, attempt, was, became) in enumerate(EVENTS, 1):
        told = {"id": event, "at": NOON, "job": OLD, "task": named and f"{OLD}-{named}", "was": was, "became": became}
        insert(connection, "events", {**told, "attempt": attempt and f"{OLD}-{attempt}", "detail": ""})
    if connection.dialect.name == "postgresql":  # as if the numbers had been counted there
        for table in ("events", "measurements"):
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 100)"))


def _as_of(revision: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of a task or an attempt as a later schema has it."""
    if revision < "0003":
        return row
    if "tries" in row:
        row = row | {"asked_epoch": row["epoch"] - row["tries"]}
        row = row | ({"reuse": row["stage"] != "benchmark"} if revision >= "0004" else {})
    if "devices" in row:
        failed = {"is_counted": row["failure_kind"] != "handed_back"} if row["failure_kind"] else {}
        row = row | {"places": [{"node": "a", "devices": DEVICES}]} | failed
    return {name: value for name, value in row.items() if name not in ("tries", "devices")}


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004", "0005"])
def test_what_an_older_haloctl_stored_is_all_there_and_goes_on(empty_url: str, revision: str) -> None:
    with Database(parse(empty_url)) as old:
        with old.writing() as connection:
            command.upgrade(schema.config(connection), revision)
            fill(connection, revision)
        with pytest.raises(SchemaOutdated, match="haloctl db upgrade"):
            open_database(empty_url, create=True)
    assert upgrade(empty_url) == SCHEMA
    with open_database(empty_url, create=False) as database:
        with database.writing() as connection:
            command.check(schema.config(connection))
        assert list(audit.violations(database)) == []
        _reads_right(database, identity=IDENTITY if revision >= "0002" else None)
        _goes_on(Store(database))
        assert list(audit.violations(database)) == []


def _reads_right(database: Database, identity: dict[str, Any] | None) -> None:
    attempts = reports.attempts(database, f"{OLD}-01")
    assert [(one.epoch, one.node, one.devices) for one in attempts] == [
        (epoch, "a", (Device("cpu", 3, "s3"),)) for epoch in (1, 2)
    ]
    assert attempts[0].started_at == NOON
    assert made(database, f"{OLD}-01-2").identity == identity
    assert [row.median for row in results(database)] == [2.0]
    assert [row.size_bytes for row in artifacts(database)] == [1 << 40]
    assert reports.job(database, OLD).counts == {
        TaskState.SUCCEEDED: 1,
        TaskState.RUNNING: 1,
        TaskState.PENDING: 1,
    }


def _goes_on(store: Store) -> None:
    assert {(task.toolchain, task.reuse) for task in store.snapshot().tasks} == {("default", True)}
    running = store.snapshot().running[0]
    assert (running.id, running.devices, running.expected_s) == (f"{OLD}-02-2", (Device("cpu", 3, "s3"),), None)
    for epoch in (2, 3, 4):
        became = give_back(store, f"{OLD}-02-{epoch}")
        assert became is (TaskState.FAILED if epoch == 4 else TaskState.QUEUED)
        if epoch < 4:
            assert open_task(store, f"{OLD}-02").avoids == ("a",)
            start(store, f"{OLD}-02")
    store.retry(f"{OLD}-02")
    succeed(store, f"{OLD}-02")
    assert store.queue([f"{OLD}-03"]) == {f"{OLD}-03"}
