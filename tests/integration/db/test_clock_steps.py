"""Clocks that step back or forth change no order, no duration and nothing that is learned from them."""

from datetime import timedelta

import pytest

from db.connection.engine import Database
from db.reads import audit, reports
from db.reads.results import results
from db.store import Store
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import TaskResult
from orchestrator.views.rows import format_elapsed
from tests.stored_jobs import (
    DIGEST,
    VMFB,
    Clock,
    finish,
    open_task,
    result_of,
    start,
    submit,
    succeed,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(database: Database, clock: Clock) -> Store:
    return Store(database, clock)


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_lost_file_is_made_again_whatever_the_clock_did_since(timed: Store, clock: Clock, step: timedelta) -> None:
    job = submit(timed, stages=["export", "compile"])
    producer, consumer = f"{job}-01", f"{job}-02"
    succeed(timed, producer)
    clock.now += step
    attempt = start(timed, consumer)
    lost = Failure(FailureKind.INPUT_LOST, "model.vmfb, which export made: missing")
    finish(timed, TaskResult(attempt.id, attempt.epoch, lost, lost=(VMFB,)))
    assert open_task(timed, producer).state is TaskState.PENDING


def test_what_was_made_again_since_is_not_made_a_third_time(timed: Store, clock: Clock) -> None:
    """Two consumers find the same file lost; the second one says so after it was made again."""
    job = submit(timed, stages=["export", "compile"], compile={"flags": []}, variants={"target": ["cpu", "mi300x"]})
    producer, *consumers = [task.id for task in timed.snapshot().tasks if task.job == job][:3]
    succeed(timed, producer)
    early, late = (start(timed, consumer) for consumer in consumers)
    lost = Failure(FailureKind.INPUT_LOST, "model.vmfb, which export made: missing")
    finish(timed, TaskResult(early.id, early.epoch, lost, lost=(VMFB,)))
    clock.passes(hours=-2)
    succeed(timed, producer)
    finish(timed, TaskResult(late.id, late.epoch, lost, lost=(VMFB,)))
    assert reports.task(timed.database, producer).state is TaskState.SUCCEEDED


def test_a_task_takes_as_long_as_its_node_says(timed: Store, clock: Clock) -> None:
    for step in (timedelta(hours=1), timedelta(hours=-1)):
        task = f"{submit(timed)}-01"
        attempt = start(timed, task)
        clock.now += step
        finish(timed, result_of(attempt, duration_s=6.0))
        assert format_elapsed(reports.task(timed.database, task)) == "6.0 s"
        assert reports.attempts(timed.database, task)[0].duration_s == 6.0
        assert open_task(timed, f"{submit(timed)}-01").expected_s == 6.0
    assert timed.snapshot().usage == {"ada": 24.0}


def test_an_attempt_that_nobody_timed_teaches_nothing(timed: Store, clock: Clock) -> None:
    attempt = start(timed, f"{submit(timed)}-01")
    clock.passes(hours=-1)
    finish(timed, result_of(attempt, duration_s=None))
    assert open_task(timed, f"{submit(timed)}-01").expected_s is None
    assert timed.snapshot().usage == {"ada": 0.0}


def test_the_newest_outputs_are_those_that_were_stored_last(timed: Store, clock: Clock) -> None:
    for _ in range(2):
        newest = f"{submit(timed)}-01"
        succeed(timed, newest, digest=DIGEST)
        clock.passes(hours=-1)
    (cached,) = timed.find_all_cached([DIGEST]).values()
    assert cached.attempt == f"{newest}-1"


def test_what_a_lost_attempt_measured_and_made_is_no_result(timed: Store) -> None:
    """Rank 0 of a gang had measured and published when the node of another rank was lost."""
    task = f"{submit(timed)}-01"
    lost = Failure(FailureKind.NODE_LOST, "node b is gone")
    for failure in (lost, Failure(FailureKind.OUT_OF_DISK, "full")):
        attempt = start(timed, task)
        result = result_of(attempt)
        finish(timed, TaskResult(**{**vars(result), "failure": failure}))
        assert results(timed.database) == []
        (stored,) = [row for row in reports.attempts(timed.database, task) if row.id == attempt.id]
        assert [artifact.kind for artifact in stored.artifacts] == ["log"]
    succeed(timed, task)
    assert {row.attempt for row in results(timed.database)} == {f"{task}-3"}
    assert list(audit.violations(timed.database)) == []


def test_a_result_of_a_lost_attempt_is_found_by_the_audit(timed: Store) -> None:
    task = f"{submit(timed)}-01"
    succeed(timed, task)
    with timed.database.writing() as connection:
        connection.exec_driver_sql("UPDATE attempts SET failure_kind = 'node_lost'")
    messages = [violation.message for violation in audit.violations(timed.database)]
    assert "it has measurements, and ended as node_lost" in messages
    assert "it has artifacts, and ended as node_lost" in messages
