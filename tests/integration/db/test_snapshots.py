"""Snapshots on real databases: read again and again they say what one that is read for the first time says."""

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from db.connection.engine import Database
from db.reads import audit, reports
from db.schema.values import pin_of
from db.snapshots.snapshot import Snapshot
from db.store import Cordon, OpenTask, Store
from jobs.errors import Conflict
from jobs.state import OPEN, RETRYABLE, Failure, FailureKind, TaskState
from jobs.task import GIB, Device, LogChunk, Node, Pin, Place, Unfit
from tests.stored_jobs import (
    BROKEN,
    Clock,
    attempt_of,
    begun,
    finish,
    give_back,
    open_task,
    result_of,
    start,
    submit,
    succeed,
)

NODES = [Node(name, name, 8, GIB, (Device("cpu", 0), Device("cpu", 1))) for name in ("a", "b")]
NO_DISK = Failure(FailureKind.OUT_OF_DISK, "no space left")


def on(store: Store, task: str, *nodes: str) -> str:
    """Start a task on nodes; returns the attempt."""
    store.queue([task])
    attempt = replace(attempt_of(open_task(store, task)), places=tuple(Place(node) for node in nodes))
    assert store.start([begun(attempt)]) == {attempt.id}
    return attempt.id


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(database: Database, clock: Clock) -> Store:
    return Store(database, clock)


def test_whatever_anybody_writes_shows_in_the_next_snapshot(database: Database, clock: Clock) -> None:
    """One store looks all the time, others write whatever there is to write."""
    random, looking = Random(3), Store(database, clock)
    states, avoiding = set(), 0
    for _ in range(100):
        step(Store(database, clock), random)
        clock.passes(seconds=1)
        seen = looking.snapshot()
        fresh = Store(database, clock).snapshot()
        assert replace(seen, usage={}) == replace(fresh, usage={})
        assert seen.usage == pytest.approx(fresh.usage)
        states |= {task.state for task in seen.tasks}
        avoiding += any(task.avoids for task in seen.tasks)
    assert states == set(TaskState) - {TaskState.CACHED}
    assert avoiding
    assert list(audit.violations(database)) == []


def step(store: Store, random: Random) -> None:
    """One thing that may happen, to whatever it may happen to: the same each time, though jobs' names differ."""
    snapshot = in_order(store.snapshot())
    tasks = {state: [task.id for task in snapshot.tasks if task.state is state] for state in TaskState}
    running = [attempt.id for attempt in snapshot.running]
    alive = [task.id for task in snapshot.tasks if task.state in OPEN | {TaskState.RUNNING}]
    choices: list[Any] = [lambda: submit(store, stages=["export", "compile"], variants={"tp": [1, 2]})]
    if tasks[TaskState.PENDING]:
        choices.append(lambda: store.queue(tasks[TaskState.PENDING][:2]))
        choices.append(lambda: store.block({tasks[TaskState.PENDING][-1]: "export failed"}))
        choices.append(lambda: store.set_wait_reasons({tasks[TaskState.PENDING][0]: (str(random.random()), True)}))
    if tasks[TaskState.QUEUED]:
        queued = [task for task in snapshot.tasks if task.id in tasks[TaskState.QUEUED]]
        choices += [lambda: store.start([begun(attempt_of(task, devices=())) for task in queued[:2]])] * 3
    if running:
        ends = [None, BROKEN, NO_DISK, Failure(FailureKind.NODE_LOST, "gone")]
        results = [result_of(attempt_of(_before(snapshot, one.task)), random.choice(ends)) for one in snapshot.running]
        choices += [lambda: store.finish(results)] * 2
        choices.append(lambda: store.request_cancel(snapshot.running[-1].task))
        choices.append(lambda: give_back(store, running[0], Failure(FailureKind.REQUEUED, "no room")))
    if alive:
        choices.append(lambda: store.request_cancel(random.choice(alive)))
    if retryable := [task.id for task in snapshot.tasks if task.state in RETRYABLE]:
        choices += [lambda: store.retry(retryable[0])] * 3
    with suppress(Conflict):  # it is being cancelled already
        random.choice(choices)()


def in_order(snapshot: Snapshot) -> Snapshot:
    """The same with what was submitted first first."""
    tasks = sorted(snapshot.tasks, key=lambda task: (task.submitted_at, task.id))
    ranks = {task.id: rank for rank, task in enumerate(tasks)}
    return replace(
        snapshot, tasks=tuple(tasks), running=tuple(sorted(snapshot.running, key=lambda one: ranks[one.task]))
    )


def _before(snapshot: Snapshot, task: str) -> OpenTask:
    """A running task as it was before its attempt."""
    found = next(one for one in snapshot.tasks if one.id == task)
    return replace(found, epoch=found.epoch - 1)


def test_a_task_avoids_the_nodes_that_failed_it_until_it_is_asked_for_again(store: Store) -> None:
    task = f"{submit(store)}-01"
    give_back(store, on(store, task, "a"), NO_DISK)
    give_back(store, on(store, task, "c", "b"), Failure(FailureKind.NODE_LOST, "gone"))
    give_back(store, on(store, task, "d"), Failure(FailureKind.REQUEUED, "no room"))
    assert open_task(store, task).avoids == ("a", "c", "b")
    assert finish(store, replace(result_of(start(store, task)), failure=BROKEN)) is TaskState.FAILED
    store.retry(task)
    assert open_task(store, task).avoids == ()


def test_a_task_is_expected_to_take_what_its_like_took(timed: Store, clock: Clock) -> None:
    for minutes in (1, 9, 2):
        task = f"{submit(timed)}-01"
        assert open_task(timed, task).expected_s == {1: None, 9: 60.0, 2: 300.0}[minutes]
        attempt = start(timed, task)
        clock.passes(minutes=minutes)
        finish(timed, result_of(attempt, duration_s=60.0 * minutes))
    job, other = submit(timed), submit(timed, variants={"tp": [2]})
    assert [open_task(timed, f"{job}-0{number}").expected_s for number in (1, 2)] == [120.0, None]
    assert open_task(timed, f"{other}-01").expected_s is None
    start(timed, f"{job}-01")
    assert timed.snapshot().running[0].expected_s == 120.0
    assert Store(timed.database).snapshot().running[0].expected_s == 120.0


def test_usage_is_device_seconds_of_late_with_those_of_what_still_runs(timed: Store, clock: Clock) -> None:
    tasks = [f"{submit(timed, submitted_by=user)}-01" for user in ("ada", "bob", "eve")]
    attempt = start(timed, tasks[0])  # two devices
    clock.passes(hours=1)
    finish(timed, result_of(attempt, duration_s=3600.0))
    assert timed.snapshot().usage == {"ada": 7200.0}
    start(timed, tasks[1])
    on(timed, tasks[2], "b")
    clock.passes(minutes=1)
    usage = timed.snapshot().usage
    assert (usage["ada"], usage["bob"]) == (7200.0, 120.0)
    assert 0 < usage["eve"] < 6
    assert Store(timed.database, clock).snapshot().usage == usage
    clock.passes(hours=25)
    assert "ada" not in timed.snapshot().usage


def test_what_must_not_be_used_is_told_and_nothing_is_started_there(store: Store) -> None:
    store.record_nodes(NODES)
    job = submit(store, variants={"tp": [1, 2]}, stages=["export"])
    waiting = [f"{job}-01", f"{job}-02"]
    store.queue(waiting)
    attempts = [attempt_of(open_task(store, task)) for task in waiting]
    store.cordon_node("b", Cordon.REQUEUING, "its rack moves")
    store.quarantine([Unfit("a", "1 GiB in use", "cpu", 1), Unfit("a", "again", "cpu", 1), Unfit("zzz", "unknown")])
    seen = store.snapshot()
    assert seen.cordoned == {"b": "its rack moves"}
    assert seen.requeuing == {"b"}
    assert seen.quarantined == {("a", "cpu", 1): "1 GiB in use"}
    elsewhere = replace(attempts[1], places=(Place("b"),))
    assert store.start([begun(attempts[0]), begun(elsewhere)]) == set()
    store.uncordon_node("b")
    store.release("a", "cpu", 1)
    assert (store.snapshot().cordoned, store.snapshot().quarantined) == ({}, {})
    assert store.start([begun(attempts[0]), begun(elsewhere)]) == {attempts[0].id, elsewhere.id}


def test_what_a_result_found_unfit_is_out_of_use_with_the_result(store: Store) -> None:
    store.record_nodes(NODES)
    attempt = start(store, f"{submit(store)}-01")
    unfit = (Unfit("a", "2 processes of somebody else", "cpu", 0), Unfit("b", "no memory"))
    assert finish(store, replace(result_of(attempt), unfit=unfit)) is TaskState.SUCCEEDED
    assert store.snapshot().quarantined == {("a", "cpu", 0): "2 processes of somebody else"}
    assert store.snapshot().cordoned == {"b": "no memory"}
    store.record_nodes([replace(NODES[0], devices=(Device("cpu", 1),))])
    assert store.snapshot().quarantined, "a device that went away is remembered"
    store.release("a", "cpu")
    store.release("b", "")
    assert (store.snapshot().cordoned, store.snapshot().quarantined) == ({}, {})


def test_priority_and_pin_come_from_the_submission(store: Store) -> None:
    job = submit(store, priority=7)
    task = open_task(store, f"{job}-01")
    assert (task.priority, task.pin) == (7, None)
    pinned = f"{submit(store, pin=Pin('a', (3,)))}-01"
    assert open_task(store, pinned).pin == Pin("a", (3,))
    assert pin_of({"node": "a", "device": 3}) == Pin("a", (3,)), "as it was stored once"
    assert pin_of({"node": "a", "device": None}) == Pin("a")


def test_a_job_whose_time_is_over_is_cancelled_and_has_it_anew_when_it_is_retried(timed: Store, clock: Clock) -> None:
    job, other = submit(timed, job_timeout_s=3600.0), submit(timed)
    succeed(timed, f"{job}-01")
    start(timed, f"{job}-02")
    clock.passes(minutes=59)
    assert timed.expire_jobs() == []
    clock.passes(minutes=1)
    assert timed.expire_jobs() == [job]
    assert [task.state for task in timed.snapshot().tasks if task.job == job] == [
        "succeeded",
        "cancelling",
        *["cancelled"] * 3,
    ]
    assert timed.expire_jobs() == []
    give_back(timed, f"{job}-02-1")
    timed.retry(job)
    assert timed.expire_jobs() == []
    clock.passes(minutes=60)
    assert timed.expire_jobs() == [job]
    assert all(task.state in OPEN for task in timed.snapshot().tasks if task.job == other)


def test_logs_are_fetched_while_somebody_follows_and_kept_until_the_end(timed: Store, clock: Clock) -> None:
    attempt = start(timed, f"{submit(timed)}-01").id
    timed.follow_log(attempt, 10)
    timed.follow_log(attempt, 20)
    timed.follow_log(f"{attempt}7", 20)
    assert timed.followed() == [attempt]
    chunks = [LogChunk(attempt, 0, "one\n"), LogChunk(attempt, 4, "two\0\n")]
    timed.add_log_chunks([*chunks, LogChunk(f"{attempt}7", 0, "of nobody")])
    timed.add_log_chunks(chunks)
    told = reports.log_chunks(timed.database, attempt)
    assert [(chunk.offset, chunk.text) for chunk in told] == [(0, "one\n"), (4, "two\ufffd\n")]
    assert reports.log_chunks(timed.database, attempt, 0) == told[1:]
    clock.passes(seconds=21)
    assert timed.followed() == []
    give_back(timed, attempt)
    timed.add_log_chunks([LogChunk(attempt, 9, "late")])
    assert reports.log_chunks(timed.database, attempt) == []
