"""Who leads, and what becomes of what runs when that changes; nodes that close; what a head does beside running."""

import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from db import reports
from db.engine import Database
from db.nodes import Closed
from db.store import LeaderKind, Store
from jobs.state import Failure, FailureKind, JobState, TaskState
from jobs.task import TaskResult, Unfit
from orchestrator.head import Head
from orchestrator.leading.driver import Driver
from orchestrator.leading.reuse import Reuse
from orchestrator.showing import log_reading, progress
from orchestrator.submitting.following import embedded, follow
from orchestrator.submitting.following import settle as settle_cancelled
from orchestrator.submitting.interrupts import Interrupts
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.attempts import until
from tests.integration.heads import (
    artifacts,
    context_of,
    executor,
    head,
    one_export,
    only,
    outcomes,
    reuse,
    settle,
    state,
    task,
)
from tests.stored_jobs import LOST, NOON, TINY, TOOLCHAIN, start, submit
from workers.artifacts import ArtifactStore

__all__ = ["artifacts", "executor", "head", "reuse"]

ENDED = Failure(FailureKind.CANCELLED, "cancelled")
OTHER = replace(NODE, id="b", host="b.example")


def test_what_runs_when_another_head_begins_to_lead_goes_on_and_its_result_counts(
    head: Head, store: Store, executor: InMemoryExecutor, reuse: Reuse
) -> None:
    name = one_export(store)
    settle(head)
    attempt = only(executor)
    head.leave()
    after = InMemoryExecutor(NODE)
    after.keeps_running = True
    later = Head(store, after, reuse, InMemoryResolver(), LeaderKind.HEAD)
    settle(later)
    assert (executor.is_left, executor.is_closed) == (True, False)
    assert after.term > executor.term
    assert (after.started, outcomes(store, name)) == ([], [("", None)])
    after.end(attempt)
    settle(later)
    assert outcomes(store, name) == [("succeeded", None)]


def test_what_was_taken_over_is_handed_back_too(
    head: Head, store: Store, executor: InMemoryExecutor, reuse: Reuse
) -> None:
    name = one_export(store)
    settle(head)
    after = InMemoryExecutor(NODE)
    after.keeps_running = True
    later = Head(store, after, reuse, InMemoryResolver())
    settle(later)
    later.hand_back()
    assert outcomes(store, name) == [("failed", FailureKind.HANDED_BACK)]


def test_a_node_that_hands_back_ends_what_it_runs_and_gets_nothing_until_it_is_used_again(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    name = one_export(store)
    settle(head)
    store.close_node("a", Closed.HANDING_BACK, "a new cooler")
    settle(head)
    assert executor.cancelled == [f"{name}-1"]
    executor.end(only(executor), ENDED)
    settle(head)
    failure = reports.attempt(store.database, f"{name}-1").failure
    assert failure == Failure(FailureKind.HANDED_BACK, "node a: a new cooler")
    assert "a new cooler" in (task(store, name).waits_for or "")
    store.open_node("a")
    settle(head)
    assert executor.started == [f"{name}-1", f"{name}-2"]


def test_a_cancel_on_a_node_that_hands_back_is_a_cancel(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = one_export(store)
    settle(head)
    store.close_node("a", Closed.HANDING_BACK, "a new cooler")
    settle(head)
    store.request_cancel(name)
    executor.end(only(executor), ENDED)
    settle(head)
    assert state(store, name) is TaskState.CANCELLED


def test_a_node_that_drains_lets_what_runs_finish(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = one_export(store)
    settle(head)
    store.close_node("a", Closed.DRAINING, "a new cooler")
    settle(head)
    assert executor.cancelled == []
    executor.end(only(executor))
    settle(head)
    assert state(store, name) is TaskState.SUCCEEDED


def test_a_node_that_wants_nothing_new_gets_nothing_new(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    executor.closed_nodes = {"a": "its toolchain has torch 2.0, the head's 2.13"}
    name = one_export(store)
    settle(head)
    assert executor.started == []
    assert "its toolchain has torch 2.0" in (task(store, name).waits_for or "")


def test_a_device_that_was_found_unfit_is_used_no_more(
    head: Head, store: Store, executor: InMemoryExecutor, reuse: Reuse
) -> None:
    name = one_export(store)
    settle(head)
    attempt = only(executor)
    (device,) = attempt.places[0].devices or (NODE.devices[0],)
    unfit = Unfit("a", "memory is held by nobody", device.kind, device.index)
    executor.deliver(
        TaskResult(attempt.id, 1, Failure(FailureKind.NODE_UNFIT, "memory is held by nobody"), unfit=(unfit,))
    )
    settle(head)
    assert store.snapshot().quarantined == {("a", device.kind, device.index): "memory is held by nobody"}
    assert executor.started == [f"{name}-1", f"{name}-2"]


def test_a_job_whose_time_is_over_is_cancelled_and_says_so(
    database: Database, executor: InMemoryExecutor, artifacts: ArtifactStore
) -> None:
    time_s = [0.0]
    store = Store(database, lambda: NOON + timedelta(seconds=time_s[0]))
    head = Head(store, executor, Reuse(store, artifacts, TOOLCHAIN), InMemoryResolver(), clock=lambda: time_s[0])
    job = submit(store, stages=["export", "compile"], job_timeout_s=60)
    settle(head)
    time_s[0] = 61.0
    settle(head)
    assert executor.cancelled == [f"{job}-01-1"]
    executor.end(only(executor), ENDED)
    settle(head)
    rows = reports.tasks(database, job)
    assert {(row.state, row.blocked_by) for row in rows} == {(TaskState.CANCELLED, "the job's time of 60 s is over")}


def test_while_a_cancel_settles_nothing_is_started(
    database: Database, tmp_path: Path, executor: InMemoryExecutor, artifacts: ArtifactStore
) -> None:
    context = context_of(database, tmp_path)
    reuse = Reuse(context.store, artifacts, TOOLCHAIN)
    first = one_export(context.store)
    gone = Head(context.store, InMemoryExecutor(NODE), reuse, InMemoryResolver())
    settle(gone)
    other = submit(context.store, stages=["export"], model=replace(TINY, digest="a" * 64))
    cancelled = context.store.request_cancel(first)
    driver = Driver(context, lambda: Head(context.store, executor, reuse, InMemoryResolver()))
    try:
        said: list[str] = []
        settle_cancelled(context, driver, cancelled, 20.0, said.append)
        assert (said, state(context.store, first)) == ([], TaskState.CANCELLED)
        assert (executor.started, state(context.store, f"{other}-01")) == ([], TaskState.PENDING)
    finally:
        driver.close()


def test_where_heads_lead_commands_only_watch_and_say_once_when_none_does(
    database: Database, store: Store, tmp_path: Path
) -> None:
    store.end_term(store.begin_term(LeaderKind.HEAD, "red.example", 7))
    job = submit(store)
    said: list[str] = []
    driver = embedded(context_of(database, tmp_path))
    try:
        deadline = time.monotonic() + 0.5
        found = follow(
            context_of(database, tmp_path), driver, job, Interrupts(), lambda rows: None, deadline, said.append
        )
        assert (found, driver.leads, driver.only_watches) == (JobState.QUEUED, False, True)
        with database.leadership() as leadership:
            assert leadership.try_lead(), "watching keeps nobody from leading"
    finally:
        driver.close()
    (line,) = said
    assert line.startswith("no head leads now; the last one was the head on red.example (process 7, since ")


def test_a_cancel_without_a_head_waits_for_none(database: Database, store: Store, tmp_path: Path) -> None:
    store.end_term(store.begin_term(LeaderKind.HEAD, "red.example", 7))
    context, said, began = context_of(database, tmp_path), list[str](), time.monotonic()
    queued, running = one_export(store), one_export(store)
    start(store, running)
    driver = embedded(context)
    try:
        settle_cancelled(context, driver, store.request_cancel(queued), 1000.0, said.append)
        assert said == [], "it had no process"
        settle_cancelled(context, driver, store.request_cancel(running), 1000.0, said.append)
    finally:
        driver.close()
    (line,) = said
    assert line.startswith("no head leads now; the last one was the head on red.example")
    assert time.monotonic() - began < 100


def test_what_had_ended_when_a_head_ends_is_stored(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = one_export(store)
    settle(head)
    executor.end(only(executor))
    head.hand_back()
    assert outcomes(store, name) == [("succeeded", None)]


def test_progress_says_after_what_a_task_runs_again(
    head: Head, store: Store, executor: InMemoryExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submit(store, stages=["export"])
    with progress.shown() as show:
        settle(head)
        show(reports.tasks(store.database, job))
        executor.end(only(executor), LOST)
        settle(head)
        show(reports.tasks(store.database, job))
    first, second = (line.split(maxsplit=2) for line in capsys.readouterr().err.splitlines())
    assert (first[:2], second[:2]) == (["running", "export"], ["running", "export"])
    assert second[2].endswith("again after node_lost")
    assert "again" not in first[2]


def test_progress_says_of_what_began_and_ended_between_two_looks_that_it_ran(
    head: Head, store: Store, executor: InMemoryExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submit(store, stages=["export"])
    with progress.shown() as show:
        show(reports.tasks(store.database, job))
        for failure in (LOST, None):
            settle(head)
            executor.end(only(executor), failure)
        settle(head)
        show(reports.tasks(store.database, job))
    ran, ended = (line.split(maxsplit=2) for line in capsys.readouterr().err.splitlines())
    assert (ran[:2], ended[:2]) == (["running", "export"], ["succeeded", "export"])
    assert ran[2].endswith("again after node_lost")


def test_a_log_is_followed_from_a_machine_that_has_only_the_database(
    database: Database, head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, tmp_path: Path
) -> None:
    name = one_export(store)
    settle(head)
    attempt = only(executor)
    executor.logs[attempt.id] = "$ python\n"
    said: list[str] = []
    reader = log_reading.read(context_of(database, tmp_path / "elsewhere"), name, follow=True, say=said.append)

    def read_on() -> str:
        """What comes next; meanwhile the head works."""
        got: list[str] = []
        thread = threading.Thread(target=lambda: got.append(next(reader, "")))
        thread.start()
        until(lambda: head.step() is not None and not thread.is_alive(), "something is read")
        thread.join()
        return got[0]

    assert read_on() == "$ python\n"
    executor.logs[attempt.id] += "1 of 2\n"
    assert read_on() == "1 of 2\n"
    (tmp_path / "log").write_text("$ python\n1 of 2\n2 of 2\n")
    kept = artifacts.put(tmp_path / "log", "log")
    executor.end(attempt, artifacts=(kept,))
    assert read_on() == ""
    assert said == [f"the log of {attempt.id} lies in the artifact store, which can't be read here"]
    again = log_reading.read(context_of(database, tmp_path), name, follow=False, say=said.append)
    assert "".join(again) == "$ python\n1 of 2\n2 of 2\n"
