"""Reports on real databases: what people see is what was stored."""

from dataclasses import replace
from datetime import UTC, timedelta, timezone

import pytest

from db.connection.engine import Database
from db.reads import reports
from db.store import Store
from jobs.errors import AmbiguousId, NotFound
from jobs.state import JobState, TaskState
from tests.stored_jobs import (
    BROKEN,
    DIGEST,
    LOG,
    LOST,
    NOON,
    attempt_of,
    fail,
    give_back,
    open_task,
    result_of,
    start,
    submit,
    succeed,
)


def test_jobs_are_listed_newest_first_with_what_their_tasks_add_up_to(database: Database, clocked: Store) -> None:
    assert reports.jobs(database) == []
    submitted = [submit(clocked, name=name) for name in ("first", "second", "third")]
    succeed(clocked, f"{submitted[1]}-01")
    fail(clocked, f"{submitted[1]}-02")
    for number in (3, 4, 5):
        clocked.block({f"{submitted[1]}-0{number}": "compile failed"})
    clocked.set_wait_reasons({f"{submitted[2]}-01": ("needs 8 x mi300x; the cluster has none", True)})
    rows = reports.jobs(database)
    assert [row.id for row in rows] == submitted[::-1]
    assert [row.id for row in reports.jobs(database, 2)] == submitted[:0:-1]
    third, second, first = rows
    assert (first.name, first.model, first.submitted_by) == ("first", "tiny-llama", "ada")
    assert (first.submitted_at, first.state, first.counts) == (NOON, JobState.QUEUED, {TaskState.PENDING: 5})
    assert second.state is JobState.FAILED
    assert second.counts == {TaskState.SUCCEEDED: 1, TaskState.FAILED: 1, TaskState.BLOCKED: 3}
    assert (third.unschedulable, third.tasks) == (1, 5)
    assert reports.job(database, submitted[1]) == second
    assert reports.job_spec(database, submitted[0])["model"] == ["tiny-llama"]


def test_ids_are_given_by_their_start_if_it_is_one_things_alone(database: Database, store: Store) -> None:
    job = submit(store)
    attempt = start(store, f"{job}-01")
    assert reports.job(database, job[:4]).id == job
    assert reports.job(database, job.upper()).id == job
    assert reports.task(database, f"{job}-01").id == f"{job}-01"
    assert reports.attempt(database, f"{job}-01").id == attempt.id
    with pytest.raises(AmbiguousId, match="several tasks start with"):
        reports.task(database, job)
    for read in (reports.job, reports.task, reports.attempt):
        with pytest.raises(NotFound, match="zzz"):
            read(database, "zzz")


def test_an_attempt_is_found_whole_though_there_are_ten_more(database: Database, store: Store) -> None:
    task = f"{submit(store)}-01"
    for _ in range(4):
        for _ in range(3):
            give_back(store, start(store, task).id)
        store.retry(task)
    assert reports.attempt(database, f"{task}-1").epoch == 1
    assert [attempt.epoch for attempt in reports.attempts(database, task)] == list(range(1, 13))


def test_a_task_says_what_it_waits_for_what_blocks_it_and_how_it_failed(database: Database, clocked: Store) -> None:
    job = submit(clocked)
    export, compile_, invoke = (f"{job}-0{number}" for number in (1, 2, 3))
    clocked.set_wait_reasons({compile_: ("after export", False)})
    assert reports.task(database, compile_).waits_for == "after export"
    fail(clocked, export)
    clocked.block({compile_: f"export ({export}) failed"})
    failed, blocked, waiting = (reports.task(database, task) for task in (export, compile_, invoke))
    assert (failed.state, failed.failure, failed.warnings) == ("failed", BROKEN, ("no v_mfma in decode",))
    assert (failed.attempt, failed.attempts, failed.node, failed.digest) == (f"{export}-1", 1, "a", DIGEST)
    assert failed.started_at is not None
    assert failed.ended_at == failed.started_at + timedelta(minutes=1)
    assert (blocked.state, blocked.blocked_by, blocked.waits_for) == ("blocked", f"export ({export}) failed", None)
    assert (waiting.attempt, waiting.attempts, waiting.node, waiting.devices, waiting.failure) == (
        None,
        0,
        None,
        (),
        None,
    )
    assert waiting.needs == (export, compile_)


def test_an_attempt_says_all_that_is_needed_to_do_it_again(database: Database, clocked: Store) -> None:
    task = f"{submit(clocked)}-01"
    given = attempt_of(replace(open_task(clocked, task)))
    result = result_of(start(clocked, task), BROKEN)
    (running,) = reports.attempts(database, task)
    assert (running.outcome, running.ended_at, running.versions) == (None, None, {"torch": "2.13.0"})
    clocked.finish([result])
    (found,) = reports.attempts(database, task)
    assert (found.commands, found.devices, found.inputs) == (given.commands, given.devices, given.inputs)
    assert (found.timeout_s, found.digest, found.toolchain, found.host_cpu) == (60.0, DIGEST, "default", "znver4")
    assert (found.versions, found.environment) == ({"torch": "2.13.1"}, {"PATH": "/bin"})
    assert (found.outcome, found.failure, found.warnings) == ("failed", BROKEN, result.warnings)
    assert (found.processes, found.artifacts) == (result.processes, (LOG,))
    assert reports.attempt(database, found.id) == found


def test_events_are_told_in_order_and_from_where_one_left_off(database: Database, store: Store) -> None:
    job, other = submit(store), submit(store)
    fail(store, f"{job}-01", LOST)
    store.block({f"{other}-02": "export failed"})
    told = reports.events(database, job=job)
    assert [(event.task, event.to_state) for event in told] == [
        (None, None),
        (f"{job}-01", "queued"),
        (f"{job}-01", "running"),
        (f"{job}-01", "queued"),
    ]
    assert [event.detail for event in told] == ["submitted by ada", "", "on a", "node_lost: node a is gone"]
    assert reports.events(database, after=told[-1].id)[0].detail == "export failed"
    assert len(reports.events(database, limit=2)) == 2


def test_times_are_aware_whatever_zone_they_were_given_in(database: Database) -> None:
    there = timezone(timedelta(hours=5, minutes=30))
    job = submit(Store(database, lambda: NOON.astimezone(there)))
    found = reports.job(database, job).submitted_at
    assert (found, found.tzinfo) == (NOON, UTC)
    with pytest.raises(Exception, match="has no time zone"):
        submit(Store(database, lambda: NOON.replace(tzinfo=None)))
