"""Files that are lost from the artifact store are made again by the tasks that made them, and nothing fails for it."""

import time
from pathlib import Path

import pytest

from db import audit, reports
from db.store import Store
from jobs.state import Failure, FailureKind, JobState, TaskState
from jobs.task import Artifact, TaskResult
from orchestrator.context import Context
from orchestrator.head import Head
from orchestrator.leading.driver import Driver
from orchestrator.leading.reuse import Reuse
from orchestrator.settings import from_environment
from orchestrator.submitting.following import follow
from orchestrator.submitting.interrupts import Interrupts
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.heads import artifacts, executor, head, mlir, only, outcomes, reuse, settle, state, task
from tests.stored_jobs import BROKEN, LOST, TOOLCHAIN, submit
from workers.artifacts import ArtifactStore

__all__ = ["artifacts", "executor", "head", "mlir", "reuse"]

GONE = Failure(FailureKind.INPUT_LOST, "model.mlir, which export made: damaged")
STAGES = ["export", "compile", "invoke"]


@pytest.fixture
def other(artifacts: ArtifactStore, tmp_path: Path) -> Artifact:
    """What an export makes that is not deterministic, the second time."""
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "model.mlir").write_text("module { }")
    return artifacts.put(tmp_path / "again" / "model.mlir", "mlir")


@pytest.fixture(autouse=True)
def rules(store: Store) -> object:
    """Whatever happens here, the database is as it must be."""
    yield
    assert list(audit.violations(store.database)) == []


def export(head: Head, executor: InMemoryExecutor, made: Artifact) -> None:
    settle(head)
    attempt = only(executor)
    assert attempt.stage == "export"
    executor.end(attempt, artifacts=(made,))
    settle(head)


def lose(executor: InMemoryExecutor, attempt: str, *files: Artifact) -> None:
    """Let an attempt end because the store did not have these."""
    found = executor.attempts[attempt]
    executor.deliver(TaskResult(found.id, found.epoch, GONE, lost=files))


def test_what_a_node_finds_damaged_is_made_again_and_what_needs_it_takes_what_was_made(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact, other: Artifact
) -> None:
    job = submit(store, stages=STAGES)
    export(head, executor, mlir)
    artifacts.path(mlir.sha256).unlink()
    lose(executor, f"{job}-02-1", mlir)
    settle(head)
    assert only(executor).id == f"{job}-01-2"
    waiting = task(store, f"{job}-02")
    assert (waiting.state, waiting.waits_for) == (TaskState.PENDING, "after export makes model.mlir again")
    assert (state(store, f"{job}-03"), reports.job(store.database, job).state) == ("pending", JobState.RUNNING)
    sent = next(event for event in reports.events(store.database, task=f"{job}-01") if event.was == "succeeded")
    assert (sent.became, sent.attempt, sent.detail) == (
        TaskState.PENDING,
        f"{job}-01-1",
        f"to make model.mlir again for {job}-02",
    )
    executor.end(only(executor), artifacts=(other,))
    settle(head)
    again = only(executor)
    assert (again.id, again.inputs) == (f"{job}-02-2", {"export": (other,)})
    assert store.outputs(f"{job}-01") == (other,)
    assert reports.attempt(store.database, f"{job}-01-1").artifacts == (mlir,), "what it made before is not forgotten"
    executor.end(again)
    settle(head)
    assert only(executor).id == f"{job}-03-1"
    assert outcomes(store, f"{job}-02") == [("failed", FailureKind.INPUT_LOST), ("succeeded", None)]


def test_what_is_gone_before_anything_starts_is_made_again_too(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact
) -> None:
    job = submit(store, stages=["export", "compile"])
    settle(head)
    artifacts.path(mlir.sha256).unlink()
    export(head, executor, mlir)
    assert only(executor).id == f"{job}-01-2"
    assert executor.started == [f"{job}-01-1", f"{job}-01-2"], "no node was asked for the impossible"
    failure = reports.attempt(store.database, f"{job}-02-1").failure
    assert failure is not None
    assert failure.message == "model.mlir, which export made: gone from the artifact store"


def lose_and_make_again(
    head: Head, executor: InMemoryExecutor, attempt: str, artifacts: ArtifactStore, lost: Artifact, made: Artifact
) -> None:
    artifacts.path(lost.sha256).unlink()
    lose(executor, attempt, lost)
    export(head, executor, made)


def test_what_is_lost_again_and_again_fails_in_the_end_and_can_be_tried_again(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact, other: Artifact
) -> None:
    job = submit(store, stages=STAGES)
    export(head, executor, mlir)
    content = artifacts.path(other.sha256).read_bytes()
    lose_and_make_again(head, executor, f"{job}-02-1", artifacts, mlir, other)
    lose_and_make_again(head, executor, f"{job}-02-2", artifacts, other, other)
    settle(head)
    failed = task(store, f"{job}-02")
    assert (failed.state, failed.attempts) == (TaskState.FAILED, 3)
    assert failed.failure is not None
    assert failed.failure.message == "model.mlir, which export made: gone from the artifact store"
    assert (state(store, f"{job}-01"), state(store, f"{job}-03")) == (TaskState.SUCCEEDED, TaskState.BLOCKED)
    assert executor.attempts == {}

    store.retry(job)
    settle(head)
    artifacts.path(other.sha256).write_bytes(content)
    export(head, executor, other)
    assert only(executor).id == f"{job}-02-5"


def test_a_file_that_one_node_alone_does_not_see_is_taken_as_it_is(
    head: Head, store: Store, executor: InMemoryExecutor, mlir: Artifact
) -> None:
    job = submit(store, stages=STAGES)
    export(head, executor, mlir)
    lose(executor, f"{job}-02-1", mlir)
    settle(head)
    assert only(executor).id == f"{job}-02-2"
    found = task(store, f"{job}-01")
    assert (found.state, found.attempt, found.attempts) == (TaskState.CACHED, f"{job}-01-1", 1)


def test_what_was_taken_over_is_made_by_the_job_itself_and_the_other_job_is_left_alone(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact, other: Artifact
) -> None:
    done = submit(store, stages=["export"])
    export(head, executor, mlir)
    job = submit(store, stages=["export", "compile"])
    settle(head)
    assert task(store, f"{job}-01").cached_from == f"{done}-01"
    before = reports.task(store.database, f"{done}-01")
    artifacts.path(mlir.sha256).unlink()
    lose(executor, f"{job}-02-1", mlir)
    head.step(starts=False)
    assert (state(store, f"{job}-01"), task(store, f"{job}-01").attempt) == (TaskState.PENDING, None)
    settle(head)
    assert only(executor).id == f"{job}-01-1"
    assert task(store, f"{job}-01").cached_from is None
    executor.end(only(executor), artifacts=(other,))
    settle(head)
    assert state(store, f"{job}-01") is TaskState.SUCCEEDED
    assert reports.task(store.database, f"{done}-01") == before


def test_of_two_jobs_that_lost_the_same_file_one_makes_it_for_both(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact, tmp_path: Path
) -> None:
    first = submit(store, stages=["export", "compile"])
    export(head, executor, mlir)
    second = submit(store, stages=["export", "compile"], compile={"flags": ["--x"]})
    settle(head)
    artifacts.path(mlir.sha256).unlink()
    for job in (first, second):
        lose(executor, f"{job}-02-1", mlir)
    settle(head)
    assert [attempt.stage for attempt in executor.attempts.values()] == ["export"]
    artifacts.put(tmp_path / "model.mlir", "mlir")
    executor.end(only(executor), artifacts=(mlir,))
    settle(head)
    assert sorted(executor.attempts) == sorted([f"{first}-02-2", f"{second}-02-2"])


def test_of_many_that_need_it_each_waits_and_who_tells_late_has_nothing_made_a_second_time(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact, tmp_path: Path
) -> None:
    """One tells at once, one waits in the queue for a device meanwhile, one tells when it was made again."""
    job = submit(store, stages=["export", "compile"], variants={"target": ["cpu", "mi300x", "h100"]})
    export(head, executor, mlir)
    first, late, given_back = sorted(executor.attempts)
    artifacts.path(mlir.sha256).unlink()
    lose(executor, first, mlir)
    settle(head)
    assert f"{job}-01-2" in executor.attempts
    executor.end(executor.attempts[given_back], LOST)
    settle(head)
    assert state(store, given_back[:-2]) is TaskState.PENDING
    artifacts.put(tmp_path / "model.mlir", "mlir")
    executor.end(executor.attempts[f"{job}-01-2"], artifacts=(mlir,))
    settle(head)
    lose(executor, late, mlir)
    settle(head)
    assert state(store, f"{job}-01") is TaskState.SUCCEEDED
    assert sorted(executor.attempts) == [f"{name[:-2]}-2" for name in (first, late, given_back)]


def test_who_leads_again_takes_what_was_made_again_while_another_led(
    head: Head,
    store: Store,
    executor: InMemoryExecutor,
    reuse: Reuse,
    artifacts: ArtifactStore,
    mlir: Artifact,
    other: Artifact,
) -> None:
    job = submit(store, stages=["export", "compile"])
    export(head, executor, mlir)
    meanwhile, again = InMemoryExecutor(NODE), InMemoryExecutor(NODE)
    another = Head(store, meanwhile, Reuse(store, artifacts, TOOLCHAIN), InMemoryResolver())
    settle(another)
    artifacts.path(mlir.sha256).unlink()
    lose(meanwhile, f"{job}-02-2", mlir)
    export(another, meanwhile, other)
    settle(Head(store, again, reuse, InMemoryResolver()))
    assert (only(again).id, only(again).inputs) == (f"{job}-02-4", {"export": (other,)})


def test_what_can_not_be_made_again_blocks_what_needs_it_and_names_the_file(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact
) -> None:
    job = submit(store, stages=STAGES)
    export(head, executor, mlir)
    artifacts.path(mlir.sha256).unlink()
    lose(executor, f"{job}-02-1", mlir)
    settle(head)
    executor.end(only(executor), BROKEN)
    settle(head)
    assert (state(store, f"{job}-01"), state(store, f"{job}-02")) == (TaskState.FAILED, TaskState.BLOCKED)
    why = task(store, f"{job}-02").blocked_by
    assert why == f"export ({job}-01) failed without having made model.mlir again"
    store.retry(job)
    export(head, executor, mlir)
    assert task(store, f"{job}-02").attempts == 2


def test_a_job_that_is_cancelled_while_something_is_made_again_stays_so(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact
) -> None:
    job = submit(store, stages=STAGES)
    export(head, executor, mlir)
    artifacts.path(mlir.sha256).unlink()
    store.request_cancel(f"{job}-02")
    lose(executor, f"{job}-02-1", mlir)
    settle(head)
    assert (state(store, f"{job}-01"), state(store, f"{job}-02")) == (TaskState.SUCCEEDED, TaskState.CANCELLED)


def test_a_command_that_waits_rides_out_that_the_whole_store_is_gone(
    head: Head, store: Store, executor: InMemoryExecutor, reuse: Reuse, mlir: Artifact, tmp_path: Path
) -> None:
    submit(store, stages=["export"])
    export(head, executor, mlir)
    head.leave()
    job, said = submit(store, stages=["export"]), list[str]()
    here, away = tmp_path / "artifacts", tmp_path / "unmounted"
    here.rename(away)

    def say(text: str) -> None:
        said.append(text)
        if away.exists():
            away.rename(here)

    context = Context(from_environment(), store.database)
    driver = Driver(context, lambda: Head(store, executor, reuse, InMemoryResolver()))
    try:
        ended = follow(context, driver, job, Interrupts(), lambda rows: None, time.monotonic() + 60.0, say)
    finally:
        driver.close()
    assert ended is JobState.SUCCEEDED
    assert "it is gone: mount it" in said[0]
    assert "can be used again" in said[1]
    assert state(store, f"{job}-01") is TaskState.CACHED
