"""What raises for one task or schedule fails that one, with the reason in its log, and the others go on."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from db.connection.engine import Database
from db.schema import tables
from db.store import Store
from db.writes import schedules
from db.writes.schedules import ScheduleOutcome
from jobs.state import FailureKind, TaskState
from jobs.task import Artifact, Attempt
from jobs.toolchain_table import TOOLCHAINS
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from orchestrator.leader.schedules import Schedules
from orchestrator.views.log_reader import read_log
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.db.test_schedules import nightly
from tests.integration.heads import artifacts, cache, context_of, executor, head, mlir, one_export, settle, state, task
from tests.stored_jobs import NOON, submit

__all__ = ["artifacts", "cache", "executor", "head", "mlir"]

TORCH: dict[str, Any] = {"variants": {"engine": "torch"}, "stages": ["benchmark"]}

#: What may be wrong with the row of a benchmark of torch: columns of `tasks`, and a part of what its log says.
BROKEN_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "settings without anything": ({"settings": {}}, "KeyError"),
    "settings of another stage": ({"settings": {"target": "cpu", "flags": []}}, "KeyError"),
    "settings that are a list": ({"settings": [1]}, "its settings are not a mapping"),
    "settings of an unknown engine": ({"settings": {"engine": "teapot"}}, "KeyError"),
    "settings of a model that is a number": ({"settings": {"engine": "torch", "model": 7}}, "AttributeError"),
    "an unknown stage": ({"stage": "brew"}, "KeyError"),
    "needs that are not there": ({"needs": ["00000000-99"]}, "KeyError"),
    "needs that are a number": ({"needs": 7}, "TypeError"),
    "resources of nothing": ({"resources": {"cores": 1}}, "TypeError"),
    "resources that are text": ({"resources": {"cpus": "many"}}, "resources that nothing can have"),
    "fewer than no devices": ({"resources": {"devices": -1}}, "resources that nothing can have"),
    "a pin to nowhere": ({"pin": {"devices": [0]}}, "KeyError"),
    "a start after nothing": ({"after": "00000000-98"}, "it starts after 00000000-98"),
}


def damage(database: Database, task: str, columns: dict[str, Any]) -> None:
    """Write columns of a task, past all checks."""
    with database.writing() as connection:
        connection.execute(update(tables.tasks).where(tables.tasks.c.id == task).values(**columns))


def assert_failed_alone(store: Store, broken: str, others: Sequence[str], trace: str) -> None:
    with store.database.reading() as connection:
        columns = tables.tasks.c
        row = connection.execute(select(columns.state, columns.failure).where(columns.id == broken)).one()
    assert (row.state, row.failure["kind"]) == (TaskState.FAILED, FailureKind.INTERNAL)
    assert "Traceback" in row.failure["log_tail"]
    assert trace in row.failure["log_tail"]
    assert [state(store, other) for other in others] == [TaskState.RUNNING] * len(others)
    assert any(event.to_state == "failed" and "internal" in event.detail for event in events(store, broken))


def events(store: Store, name: str) -> Sequence[Any]:
    with store.database.reading() as connection:
        return connection.execute(tables.events.select().where(tables.events.c.task == name)).all()


@pytest.mark.parametrize("what", BROKEN_ROWS)
def test_a_malformed_row_fails_its_task_alone(head: Head, store: Store, what: str) -> None:
    columns, trace = BROKEN_ROWS[what]
    broken, *others = f"{submit(store, **TORCH)}-01", one_export(store), one_export(store)
    damage(store.database, broken, columns)
    settle(head)
    assert_failed_alone(store, broken, others[:1], trace)  # the other export waits for its duplicate
    assert task(store, others[1]).waits_for == f"{others[0]} computes the same"


def test_the_log_of_such_a_task_is_the_traceback(head: Head, store: Store, tmp_path: Path) -> None:
    broken = f"{submit(store, **TORCH)}-01"
    damage(store.database, broken, {"settings": {}})
    settle(head)
    log = "".join(read_log(context_of(store.database, tmp_path), broken, follow=False, notify=lambda text: None))
    assert log.startswith("Traceback")
    assert "KeyError" in log


def test_json_that_is_none_fails_its_task_alone(head: Head, store: Store) -> None:
    broken, other = f"{submit(store, **TORCH)}-01", one_export(store)
    with suppress(DBAPIError), store.database.writing() as connection:  # Postgres checks what a JSON column holds
        connection.execute(text("UPDATE tasks SET settings = '{\"a\":' WHERE id = :id"), {"id": broken})
    if store.database.url.drivername != "sqlite":
        pytest.skip("Postgres refuses text that is no JSON")
    settle(head)
    assert_failed_alone(store, broken, [other], "JSONDecodeError")


def test_commands_are_counted_before_they_are_made(head: Head, store: Store) -> None:
    broken, other = f"{submit(store, **TORCH)}-01", one_export(store)
    damage(store.database, broken, {"settings": {**task(store, broken).settings, "processes": 10**9}})
    settle(head)
    assert_failed_alone(store, broken, [other], "benchmark would run 1000000000 commands")


def test_what_needs_a_malformed_task_is_blocked(head: Head, store: Store) -> None:
    job = submit(store, stages=["export", "compile"])
    damage(store.database, f"{job}-01", {"settings": {}})
    settle(head)
    assert [state(store, f"{job}-0{number}") for number in (1, 2)] == [TaskState.FAILED, TaskState.BLOCKED]
    store.retry(f"{job}-01")
    settle(head)  # it fails again, and is not tried for ever
    assert state(store, f"{job}-01") is TaskState.FAILED


class PickyExecutor(InMemoryExecutor):
    """Raises for attempts of one stage, as code that a transport can't send would."""

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        if any(attempt.stage == "benchmark" for attempt in attempts):
            raise TypeError("can't be sent")
        return super().start(attempts)


def test_an_attempt_that_no_executor_can_take_fails_alone(store: Store, cache: OutputCache) -> None:
    broken, other = f"{submit(store, **TORCH)}-01", one_export(store)
    settle(Head(store, PickyExecutor(NODE), cache, InMemoryResolver()))
    row = task(store, broken)
    assert row.failure is not None
    assert (row.state, row.failure.kind, row.failure.message) == (
        TaskState.FAILED,
        FailureKind.INTERNAL,
        "TypeError: can't be sent",
    )
    assert state(store, other) is TaskState.RUNNING


def test_a_result_whose_gate_raises_fails_alone(
    head: Head, store: Store, executor: InMemoryExecutor, mlir: Artifact
) -> None:
    gated = submit(store, **TORCH, gate={"against": "last-good"})
    plain = submit(store, stages=["export"])
    settle(head)
    with store.database.writing() as connection:
        spec = tables.jobs.c.spec
        row = connection.execute(tables.jobs.select().with_only_columns(spec).where(tables.jobs.c.id == gated)).scalar()
        broken = {**(row or {}), "gate": {"against": "nonsense"}}
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == gated).values(spec=broken))
    while executor.attempts:  # the benchmark has its node for itself
        for attempt in list(executor.attempts.values()):
            executor.end(attempt, artifacts=[mlir] if attempt.stage == "export" else [])
        settle(head)
    assert (state(store, f"{gated}-01"), state(store, f"{plain}-01")) == (TaskState.FAILED, TaskState.SUCCEEDED)


@pytest.mark.parametrize(
    "columns",
    [{"cron": "never"}, {"timezone": "Mars"}, {"spec": {}}, {"spec": [1]}, {"model_facts": {}}, {"if_missed": "cry"}],
)
def test_a_malformed_schedule_stops_no_other(
    database: Database, columns: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    schedules.add(database, nightly("broken"))
    schedules.add(database, nightly("good"))
    with database.writing() as connection:
        connection.execute(update(tables.schedules).where(tables.schedules.c.name == "broken").values(**columns))
    head = Schedules(database, lambda: TOOLCHAINS)
    assert len(head.submit_due(NOON)) == 1
    assert head.submit_due(NOON) == []
    assert any(message.startswith("schedule broken:") for message in caplog.messages)
    outcomes = [run.outcome for run in schedules.runs(database, "broken")]
    assert outcomes == [ScheduleOutcome.FAILED]
