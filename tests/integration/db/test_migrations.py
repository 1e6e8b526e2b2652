"""Migrations from each earlier schema, with rows in it, on real databases: nothing is lost, all of it reads right."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import JSON, Connection, Text, cast, column, select, table, text

from db.connection import schema_version
from db.connection.engine import Database, open_database, upgrade
from db.connection.errors import parse
from db.query.query import query
from db.reads import audit, machines, reports
from db.reads.identities import attempt_identity
from db.reads.matrix import matrix
from db.reads.replanning import replan
from db.reads.results import artifacts, results
from db.reads.run_filter import RunFilter
from db.reads.runs import runs
from db.schema import renames, tables
from db.schema.tables import SCHEMA
from db.store import Cordon, Store
from db.writes import toolchains, transfer
from db.writes.attempt_results import recent_durations
from jobs.errors import SchemaOutdated
from jobs.hashing import digest_of
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Device
from jobs.variants import Attention, Precision
from tests.databases import sqlite_file
from tests.stored_jobs import NOON, everything, give_back, open_task, start, succeed

OLD = "0a0a0a0a"
DEVICES = [{"kind": "cpu", "index": 3, "serial": "s3", "memory_bytes": 0}]
IDENTITY = {"stage": "export", "settings": {"tp": 1}}
QUANTIZE = {"model": {"text": "tiny-llama", "digest": "d"}, "precision": "FP8", "maker": "quark"}
QUANTIZE_IDENTITY = {"stage": "quantize", "settings": {**QUANTIZE, "model": {"digest": "d"}}}
RESOURCES = {"cpus": 1, "devices": 1, "device_kind": "cpu", "is_quiet": True}
CONTEXT = {"batch": 1, "machine": {"cpu_throttles": 2, "devices": [{"slowed_by_heat": 0.5, "strangers": []}]}}

QUANTIZED = {"model": {"digest": "d"}, "precision": "FP8", "quantizer": "quark"}  #: in an identity, as it is now
DEVICE = {"kind": "cpu", "serial": "s3", "memory_bytes": 0}
NODE: dict[str, Any] = {
    "id": "a",
    "host": "a",
    "address": "127.0.0.1",
    "cpus": 8,
    "memory_bytes": 0,
    "versions": {},
    "is_up": True,
    "first_seen_at": NOON,
    "seen_at": NOON,
    "closed": "handing_back",
    "closed_why": "moves",
    "closed_at": NOON,
    "refuses_why": "old",
    "checks": [],
}
TOOLCHAIN: dict[str, Any] = {
    "name": "iree-3",
    "digest": "l" * 64,
    "source": "s",
    "is_over": True,
    "python": "3.11",
    "lines": [],
    "versions": {},
    "resolved_at": NOON,
}

JOB: dict[str, Any] = {
    "id": OLD,
    "name": "old",
    "model": "tiny-llama",
    "model_facts": {"text": "tiny-llama", "name": "tiny-llama", "digest": "d" * 64, "parameters": 1},
    "spec": {"name": "old", "model": "tiny-llama", "benchmark": {"quiet": True, "repetitions": 2}},
    "submitted_by": "ada",
    "submitted_at": NOON,
    "timeout_s": 60.0,
    "reuse": True,
}
#: Task 01 succeeded at its second attempt, 02 was requeued and runs, 03 waits for it; 04 quantized.
TASKS = [
    {"state": "succeeded", "epoch": 2, "tries": 2, "attempt": f"{OLD}-01-2", "needs": []},
    {"state": "running", "epoch": 2, "tries": 1, "attempt": f"{OLD}-02-2", "needs": [f"{OLD}-01"]},
    {"state": "pending", "epoch": 0, "tries": 0, "attempt": None, "needs": [f"{OLD}-02"]},
    {"state": "succeeded", "epoch": 1, "tries": 1, "attempt": f"{OLD}-04-1", "needs": []},
]
ATTEMPTS = [
    ("01", 1, "failed", "node_lost"),
    ("01", 2, "succeeded", None),
    ("02", 1, "failed", "handed_back"),
    ("02", 2, None, None),
    ("04", 1, "succeeded", None),
]
EVENTS = [
    (None, None, None, None),
    ("01", None, "pending", "queued"),
    ("01", "01-1", "queued", "running"),
    ("01", "01-1", "running", "queued"),
    ("01", "01-2", "queued", "running"),
    ("01", "01-2", "running", "succeeded"),
    ("04", None, "pending", "queued"),
    ("04", "04-1", "queued", "running"),
    ("04", "04-1", "running", "succeeded"),
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
        stage, settings = ("quantize", QUANTIZE) if number == 4 else ("export", {"tp": 1})
        row = {"id": f"{OLD}-0{number}", "job": OLD, "stage": stage, "subject": "x", "target": "cpu", **task}
        empty = {"settings": settings, "resources": RESOURCES, "is_stuck": False}
        insert(connection, "tasks", _as_of(revision, row | empty))
        cell = {
            "job": OLD,
            "position": 0,
            "variant": "v",
            "target": "cpu",
            "stage": "quantize" if number == 4 else f"s{number}",
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
            "digest": digest_of(QUANTIZE_IDENTITY) if owner == "04" else "f" * 64,
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
        identity = QUANTIZE_IDENTITY if owner == "04" else IDENTITY
        insert(connection, "attempts", _as_of(revision, row | ({"identity": identity} if revision >= "0002" else {})))
    made = {"attempt": f"{OLD}-01-2", "name": "model.mlir", "kind": "mlir", "sha256": "1" * 64, "size_bytes": 1 << 40}
    insert(connection, "artifacts", made)
    measured = {"id": 1, "attempt": f"{OLD}-01-2", "metric": "trace_s", "unit": "s", "median": 2.0, "samples": [2.0]}
    insert(connection, "measurements", {**measured, "context": CONTEXT})
    lost = {"attempt": f"{OLD}-01-1", "name": "lost.mlir", "kind": "mlir", "sha256": "2" * 64, "size_bytes": 1}
    insert(connection, "artifacts", lost)
    insert(connection, "measurements", {**measured, "id": 2, "attempt": f"{OLD}-01-1", "context": CONTEXT})
    for event, (named, attempt, was, became) in enumerate(EVENTS, 1):
        told = {"id": event, "at": NOON, "job": OLD, "task": named and f"{OLD}-{named}", "was": was, "became": became}
        detail = "handed_back: why" if (attempt, became) == ("02-1", "queued") else ""
        insert(connection, "events", {**told, "attempt": attempt and f"{OLD}-{attempt}", "detail": detail})
    if revision >= "0003":
        _fill_cluster(connection)
    if revision >= "0004":
        insert(connection, "toolchains", TOOLCHAIN)
    if connection.dialect.name == "postgresql":  # as if the numbers had been counted there
        for table in ("events", "measurements"):
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 100)"))


def _fill_cluster(connection: Connection) -> None:
    insert(connection, "durations", {"likeness": _duration_key(QUANTIZE), "recent_s": [3.0]})
    insert(connection, "terms", {"id": 1, "kind": "head", "host": "h", "pid": 7, "began_at": NOON})
    insert(connection, "nodes", NODE)
    insert(
        connection, "devices", {"node": "a", "index": 3, **DEVICE, "quarantined_why": "too hot", "quarantined_at": NOON}
    )


def _duration_key(settings: dict[str, Any]) -> str:
    return digest_of(["quantize", {**settings, "model": {"digest": "d"}}])


def _as_of(revision: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of a task or an attempt as a later schema has it."""
    if revision < "0003":
        return row
    if "tries" in row:
        key = {"likeness": _duration_key(QUANTIZE)} if row["stage"] == "quantize" else {}
        row = row | {"asked_epoch": row["epoch"] - row["tries"]} | key
        row = row | ({"reuse": row["stage"] != "benchmark"} if revision >= "0004" else {})
    if "devices" in row:
        failed = {"is_counted": row["failure_kind"] != "handed_back"} if row["failure_kind"] else {}
        row = row | {"places": [{"node": "a", "devices": DEVICES}], "term": 1} | failed
    return {name: value for name, value in row.items() if name not in ("tries", "devices")}


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004", "0005", "0006"])
def test_what_an_older_haloctl_stored_is_all_there_and_goes_on(empty_url: str, revision: str) -> None:
    with Database(parse(empty_url)) as old:
        with old.writing() as connection:
            command.upgrade(schema_version.config(connection), revision)
            fill(connection, revision)
        with pytest.raises(SchemaOutdated, match="haloctl db upgrade"):
            open_database(empty_url, create=True)
    assert upgrade(empty_url) == SCHEMA
    with open_database(empty_url, create=False) as database:
        with database.writing() as connection:
            command.check(schema_version.config(connection))
        assert list(audit.violations(database)) == []
        _reads_right(database, identity=IDENTITY if revision >= "0002" else None)
        _reads_renamed(database, revision)
        _goes_on(Store(database), term=1 if revision >= "0003" else None)
        assert list(audit.violations(database)) == []


def _reads_right(database: Database, identity: dict[str, Any] | None) -> None:
    attempts = reports.attempts(database, f"{OLD}-01")
    assert [(one.epoch, one.node, one.devices) for one in attempts] == [
        (epoch, "a", (Device("cpu", 3, "s3"),)) for epoch in (1, 2)
    ]
    assert attempts[0].started_at == NOON
    assert [one.duration_s for one in attempts] == [0.0, 0.0]
    assert [one.warnings for one in attempts] == [("it was lost, so this is no result: trace_s 2 s, lost.mlir",), ()]
    assert attempt_identity(database, f"{OLD}-01-2").identity == identity
    assert [row.median for row in results(database)] == [2.0]
    assert [row.size_bytes for row in artifacts(database)] == [1 << 40]
    assert reports.job(database, OLD).counts == {
        TaskState.SUCCEEDED: 2,
        TaskState.RUNNING: 1,
        TaskState.PENDING: 1,
    }


def _reads_renamed(database: Database, revision: str) -> None:
    """What had another name or key is read under its new one by everything that reads it."""
    assert reports.attempts(database, f"{OLD}-02")[0].failure == Failure(FailureKind.REQUEUED, "why")
    assert [event.detail for event in reports.events(database, task=f"{OLD}-02") if event.detail] == ["requeued: why"]
    assert [row.id for row in reports.jobs(database)] == [OLD]
    assert {stage for row in matrix(database, job=OLD) for stage in row.stages} == {"quantize"}
    (result,) = results(database)
    device = {"thermal_throttle_share": 0.5, "foreign_processes": []}
    assert result.context["machine"] == {"cpu_thermal_throttles": 2, "devices": [device]}
    assert [run.median for run in runs(database, RunFilter(metrics=("trace_s",)))] == [2.0]
    replanned = replan(database, f"{OLD}-04", None)
    assert replanned.plan.tasks[-1].settings == {**QUANTIZED, "model": QUANTIZE["model"]}
    assert replanned.plan.tasks[-1].resources.is_exclusive
    assert replanned.spec["benchmark"] == {"exclusive": True, "repetitions": 2}
    states = query(database, "SELECT from_state, was, to_state, became FROM events", limit=100, timeout_s=20).rows
    assert len(states) == len(EVENTS)
    assert all((was, became) == (from_state, to_state) for from_state, was, to_state, became in states)
    if revision >= "0002":
        (cached,) = Store(database).find_all_cached([digest_of({"stage": "quantize", "settings": QUANTIZED})]).values()
        assert cached.attempt == f"{OLD}-04-1"
    if revision >= "0003":
        _reads_renamed_cluster(database)
    if revision >= "0004":
        (lock,) = toolchains.all_current(database).values()
        assert lock.lock.is_over


def _reads_renamed_cluster(database: Database) -> None:
    with database.reading() as connection:
        key = digest_of(["quantize", QUANTIZED])
        assert recent_durations(connection, [key]) == {key: [3.0]}
        assert connection.scalar(select(tables.tasks.c.duration_key).where(tables.tasks.c.id == f"{OLD}-04")) == key
    leader = reports.leader(database)
    assert leader is not None
    assert leader.started_at == NOON
    node = machines.node(database, "a")
    assert (node.cordon, node.cordon_reason, node.last_seen_at) == (Cordon.REQUEUING, "moves", NOON)
    assert node.devices[0].quarantine_reason == "too hot"
    asked = "SELECT cordon, closed, closed_why, refuses_why, not_ready_reason FROM nodes"
    assert query(database, asked, limit=9, timeout_s=20).rows == [("requeuing", "requeuing", "moves", "old", "old")]
    asked = "SELECT quarantine_reason, quarantined_why FROM devices"
    assert query(database, asked, limit=9, timeout_s=20).rows == [("too hot", "too hot")]
    Store(database).uncordon_node("a")
    Store(database).release("a", "cpu")


def _goes_on(store: Store, term: int | None) -> None:
    assert {(task.toolchain, task.reuse) for task in store.snapshot().tasks} == {("default", True)}
    running = store.snapshot().running[0]
    assert (running.id, running.devices, running.expected_s) == (f"{OLD}-02-2", (Device("cpu", 3, "s3"),), None)
    for epoch in (2, 3, 4):
        became = give_back(store, f"{OLD}-02-{epoch}")
        assert became is (TaskState.FAILED if epoch == 4 else TaskState.QUEUED)
        if epoch < 4:
            assert open_task(store, f"{OLD}-02").avoids == ("a",)
            start(store, f"{OLD}-02", term=term)
    store.retry(f"{OLD}-02")
    succeed(store, f"{OLD}-02")
    assert store.queue([f"{OLD}-03"]) == {f"{OLD}-03"}


def _export_of_the_schema_before(connection: Connection) -> Iterator[str]:
    """The lines that the release before wrote."""
    old_names = {name: {new: old for old, new in columns.items()} for name, columns in renames.COLUMNS.items()}
    all_columns = {
        source.name: {old_names.get(source.name, {}).get(one.name, one.name): one.type for one in source.columns}
        for source in tables.TRANSFERRED
        if source.name not in renames.ADDED_TABLES
    }
    for name, added in renames.ADDED.items():
        for one in added:
            del all_columns[name][one]
    heads = {name: list(columns) for name, columns in all_columns.items()}
    yield json.dumps({"format": transfer.FORMAT, "schema": "0006", "tables": heads})
    counts = Counter[str]()
    for name, columns in all_columns.items():
        typed = (
            cast(column(one), Text).label(one) if isinstance(kind, JSON) else column(one, kind)
            for one, kind in columns.items()
        )
        for row in connection.execute(select(*typed).select_from(table(name))):
            counts[name] += 1
            yield json.dumps([name, *(one.isoformat() if isinstance(one, datetime) else one for one in row)])
    yield json.dumps({"rows": counts})


def test_an_export_of_the_schema_before_is_imported_as_an_upgrade_would_leave_it(
    empty_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "goal"
    folder.mkdir()
    with sqlite_file(sqlite_template, folder) as goal_url, Database(parse(empty_url)) as old:
        with old.writing() as connection:
            command.upgrade(schema_version.config(connection), "0006")
            fill(connection, "0006")
        with old.reading() as connection:
            lines = list(_export_of_the_schema_before(connection))
        with open_database(goal_url, create=False) as imported:
            transfer.import_lines(imported, "old.jsonl", lines)
            upgrade(empty_url)
            rows = everything(imported)
            assert rows == everything(old)
            assert rows["attempts"]
            assert list(audit.violations(imported)) == []
