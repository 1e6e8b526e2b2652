"""Leader election, what happens to running attempts when the leader changes, draining nodes, and maintenance."""

import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from db.connection.engine import Database
from db.reads import reports
from db.store import LeaderKind, Store
from db.writes.nodes import Cordon
from jobs.state import Failure, FailureKind, JobState, TaskState
from jobs.task import TaskResult, Unfit
from orchestrator.follow.following import embedded, follow
from orchestrator.follow.following import settle as settle_cancelled
from orchestrator.interrupts import Interrupts
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from orchestrator.leader.loop import LeaderLoop
from orchestrator.views import log_reader, progress
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.attempts import until
from tests.integration.heads import (
    artifacts,
    cache,
    context_of,
    executor,
    head,
    one_export,
    only,
    outcomes,
    settle,
    state,
    task,
)
from tests.stored_jobs import LOST, NOON, TINY, TOOLCHAIN, start, submit
from workers.artifacts import ArtifactStore

__all__ = ["artifacts", "cache", "executor", "head"]

ENDED = Failure(FailureKind.CANCELLED, "cancelled")
OTHER = replace(NODE, id="b", host="b.example")


def test_what_runs_when_another_head_begins_to_lead_goes_on_and_its_result_counts(
    head: Head, store: Store, executor: InMemoryExecutor, cache: OutputCache
) -> None:
    name = one_export(store)
    settle(head)
    attempt = only(executor)
    head.detach()
    after = InMemoryExecutor(NODE)
    after.keeps_running = True
    later = Head(store, after, cache, InMemoryResolver(), LeaderKind.HEAD)
    settle(later)
    assert (executor.is_detached, executor.is_closed) == (True, False)
    assert after.term > executor.term
    assert (after.started, outcomes(store, name)) == ([], [("", None)])
    after.end(attempt)
    settle(later)
    assert outcomes(store, name) == [("succeeded", None)]


def test_what_was_taken_over_is_handed_back_too(
    head: Head, store: Store, executor: InMemoryExecutor, cache: OutputCache
) -> None:
    name = one_export(store)
    settle(head)
    after = InMemoryExecutor(NODE)
    after.keeps_running = True
    later = Head(store, after, cache, InMemoryResolver())
    settle(later)
    later.stop()
    assert outcomes(store, name) == [("failed", FailureKind.REQUEUED)]


def test_a_node_that_hands_back_ends_what_it_runs_and_gets_nothing_until_it_is_used_again(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    name = one_export(store)
    settle(head)
    store.cordon_node("a", Cordon.REQUEUING, "a new cooler")
    settle(head)
    assert executor.cancelled == [f"{name}-1"]
    executor.end(only(executor), ENDED)
    settle(head)
    failure = reports.attempt(store.database, f"{name}-1").failure
    assert failure == Failure(FailureKind.REQUEUED, "node a: a new cooler")
    assert "a new cooler" in (task(store, name).waits_for or "")
    store.uncordon_node("a")
    settle(head)
    assert executor.started == [f"{name}-1", f"{name}-2"]


def test_a_cancel_on_a_node_that_hands_back_is_a_cancel(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = one_export(store)
    settle(head)
    store.cordon_node("a", Cordon.REQUEUING, "a new cooler")
    settle(head)
    store.request_cancel(name)
    executor.end(only(executor), ENDED)
    settle(head)
    assert state(store, name) is TaskState.CANCELLED


def test_a_node_that_drains_lets_what_runs_finish(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = one_export(store)
    settle(head)
    store.cordon_node("a", Cordon.DRAINING, "a new cooler")
    settle(head)
    assert executor.cancelled == []
    executor.end(only(executor))
    settle(head)
    assert state(store, name) is TaskState.SUCCEEDED


def test_a_node_that_wants_nothing_new_gets_nothing_new(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    executor.cordons = {"a": "its toolchain has torch 2.0, the head's 2.13"}
    name = one_export(store)
    settle(head)
    assert executor.started == []
    assert "its toolchain has torch 2.0" in (task(store, name).waits_for or "")


def test_a_device_that_was_found_unfit_is_used_no_more(
    head: Head, store: Store, executor: InMemoryExecutor, cache: OutputCache
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
    head = Head(store, executor, OutputCache(store, artifacts, TOOLCHAIN), InMemoryResolver(), clock=lambda: time_s[0])
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
    cache = OutputCache(context.store, artifacts, TOOLCHAIN)
    first = one_export(context.store)
    gone = Head(context.store, InMemoryExecutor(NODE), cache, InMemoryResolver())
    settle(gone)
    other = submit(context.store, stages=["export"], model=replace(TINY, digest="a" * 64))
    cancelled = context.store.request_cancel(first)
    loop = LeaderLoop(context, lambda: Head(context.store, executor, cache, InMemoryResolver()))
    try:
        messages: list[str] = []
        settle_cancelled(context, loop, cancelled, 20.0, messages.append)
        assert (messages, state(context.store, first)) == ([], TaskState.CANCELLED)
        assert (executor.started, state(context.store, f"{other}-01")) == ([], TaskState.PENDING)
    finally:
        loop.close()


def test_where_heads_lead_commands_only_watch_and_say_once_when_none_does(
    database: Database, store: Store, tmp_path: Path
) -> None:
    store.end_term(store.start_term(LeaderKind.HEAD, "red.example", 7))
    job = submit(store)
    messages: list[str] = []
    loop = embedded(context_of(database, tmp_path))
    try:
        deadline = time.monotonic() + 0.5
        job_state = follow(
            context_of(database, tmp_path), loop, job, Interrupts(), lambda rows: None, deadline, messages.append
        )
        assert (job_state, loop.is_leading, loop.is_observer) == (JobState.QUEUED, False, True)
        with database.leader_lock() as leader_lock:
            assert leader_lock.try_acquire(), "watching keeps nobody from leading"
    finally:
        loop.close()
    (line,) = messages
    assert line.startswith("no head leads now; the last one was the head on red.example (process 7, since ")


def test_a_cancel_without_a_head_waits_for_none(database: Database, store: Store, tmp_path: Path) -> None:
    store.end_term(store.start_term(LeaderKind.HEAD, "red.example", 7))
    context, messages, began = context_of(database, tmp_path), list[str](), time.monotonic()
    queued, running = one_export(store), one_export(store)
    start(store, running)
    loop = embedded(context)
    try:
        settle_cancelled(context, loop, store.request_cancel(queued), 1000.0, messages.append)
        assert messages == [], "it had no process"
        settle_cancelled(context, loop, store.request_cancel(running), 1000.0, messages.append)
    finally:
        loop.close()
    (line,) = messages
    assert line.startswith("no head leads now; the last one was the head on red.example")
    assert time.monotonic() - began < 100


def test_what_had_ended_when_a_head_ends_is_stored(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = one_export(store)
    settle(head)
    executor.end(only(executor))
    head.stop()
    assert outcomes(store, name) == [("succeeded", None)]


def test_progress_says_after_what_a_task_runs_again(
    head: Head, store: Store, executor: InMemoryExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submit(store, stages=["export"])
    with progress.live_progress() as show:
        settle(head)
        show(reports.tasks(store.database, job))
        executor.end(only(executor), LOST)
        settle(head)
        show(reports.tasks(store.database, job))
    first, second = (line.split(maxsplit=2) for line in capsys.readouterr().err.splitlines())
    assert (first[:2], second[:2]) == (["running", "export"], ["running", "export"])
    assert second[2].endswith("retry after node_lost")
    assert "again" not in first[2]


def test_progress_says_of_what_began_and_ended_between_two_looks_that_it_ran(
    head: Head, store: Store, executor: InMemoryExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submit(store, stages=["export"])
    with progress.live_progress() as show:
        show(reports.tasks(store.database, job))
        for failure in (LOST, None):
            settle(head)
            executor.end(only(executor), failure)
        settle(head)
        show(reports.tasks(store.database, job))
    ran, ended = (line.split(maxsplit=2) for line in capsys.readouterr().err.splitlines())
    assert (ran[:2], ended[:2]) == (["running", "export"], ["succeeded", "export"])
    assert ran[2].endswith("retry after node_lost")


def test_a_log_is_followed_from_a_machine_that_has_only_the_database(
    database: Database, head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, tmp_path: Path
) -> None:
    name = one_export(store)
    settle(head)
    attempt = only(executor)
    executor.logs[attempt.id] = "$ python\n"
    messages: list[str] = []
    reader = log_reader.read_log(
        context_of(database, tmp_path / "elsewhere"), name, follow=True, notify=messages.append
    )

    def read_on() -> str:
        """Return the next line; the head works meanwhile."""
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
    assert messages == [f"the log of {attempt.id} is in the artifact store, which can't be read here"]
    again = log_reader.read_log(context_of(database, tmp_path), name, follow=False, notify=messages.append)
    assert "".join(again) == "$ python\n1 of 2\n2 of 2\n"
