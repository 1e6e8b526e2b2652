"""Heads and toolchains, step by step: resolved once, built where needed, and failures before any device is used."""

import threading
from dataclasses import replace

import pytest

from db.reads import reports
from db.store import Store
from db.writes import toolchains
from jobs.errors import IndexUnreachable, ToolchainUnusable
from jobs.state import FailureKind, TaskState
from jobs.task import Artifact
from jobs.toolchains import Lock
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from orchestrator.leader.toolchain_locks import RETRY_PAUSES_S
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.attempts import until
from tests.integration.heads import artifacts, cache, executor, mlir, only, task
from tests.stored_jobs import submit
from workers.artifacts import ArtifactStore
from workers.processes.cancellation import Cancellation

__all__ = ["artifacts", "cache", "executor", "mlir"]

NAME = "iree-3.12"
LOCK = Lock(NAME, ("iree-base-compiler==3.12.0",), {"iree-base-compiler": "3.12.0"}, "3.11", is_over=True, source="s")
LATER = replace(LOCK, lines=("iree-base-compiler==3.12.1",), versions={"iree-base-compiler": "3.12.1"}, source="t")
BAD = ToolchainUnusable(NAME, "can't be resolved", "no version of\niree-base-compiler==3.12")
AWAY = IndexUnreachable(f"toolchain {NAME}", "dns error")


def submit_compile(store: Store) -> str:
    """Submit a job with a compile under the toolchain; returns its id."""
    return submit(store, stages=["export", "compile"], variants={"toolchain": [NAME]})


class Heads:
    """A head that is stepped by hand, and its clock."""

    def __init__(
        self, store: Store, executor: InMemoryExecutor, cache: OutputCache, resolver: InMemoryResolver
    ) -> None:
        self.time_s = 0.0
        self.executor, self.store = executor, store
        self.head = Head(store, executor, cache, resolver, clock=lambda: self.time_s)

    def step_until(self, task_id: str, state: TaskState, waits_for: str | None = None) -> None:
        def is_so() -> bool:
            self.time_s += 1.0
            self.head.step()
            row = task(self.store, task_id)
            return row.state is state and (waits_for is None or row.waits_for == waits_for)

        until(is_so, f"{task_id} is {state} {waits_for or ''}")

    def export(self, job: str, mlir: Artifact) -> str:
        """Have the export done; the id of the compile."""
        self.step_until(f"{job}-01", TaskState.RUNNING)
        self.executor.end(only(self.executor), artifacts=(mlir,))
        self.step_until(f"{job}-02", TaskState.QUEUED)
        return f"{job}-02"

    def compile(self, job: str, mlir: Artifact) -> str:
        """Have the toolchain built, and the compile started; its id."""
        name = self.export(job, mlir)
        self.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a")
        self.executor.end_build(LOCK)
        self.step_until(name, TaskState.RUNNING)
        return name


@pytest.fixture
def resolver() -> InMemoryResolver:
    return InMemoryResolver(**{NAME: LOCK})


@pytest.fixture
def heads(store: Store, executor: InMemoryExecutor, cache: OutputCache, resolver: InMemoryResolver) -> Heads:
    return Heads(store, executor, cache, resolver)


def test_a_task_runs_under_its_toolchain_once_that_is_resolved_and_built(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact, resolver: InMemoryResolver
) -> None:
    name = heads.compile(submit_compile(store), mlir)
    assert resolver.asked == [NAME]
    assert toolchains.all_current(store.database)[NAME].compiler_flags == frozenset({"--of-the-lock"})
    attempt = only(executor)
    assert attempt.toolchain == LOCK.digest
    (row,) = reports.attempts(store.database, name)
    assert (row.toolchain, row.lock, row.versions) == (NAME, LOCK.digest, LOCK.versions)


def test_a_toolchain_that_can_t_be_resolved_fails_the_task_with_uv_s_words_and_a_retry_resolves_it_anew(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact, resolver: InMemoryResolver
) -> None:
    resolver.known[NAME] = BAD
    name = heads.export(submit_compile(store), mlir)
    heads.step_until(name, TaskState.FAILED)
    failure = task(store, name).failure
    assert failure is not None
    assert (failure.kind, failure.log_tail) == (FailureKind.TOOLCHAIN, str(BAD))
    assert "no version of iree-base-compiler==3.12" in failure.message
    assert not reports.attempts(store.database, name), "no device was taken"
    resolver.known[NAME] = LOCK
    store.retry(name)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a")
    assert resolver.asked == [NAME, NAME]


def test_a_network_that_is_away_is_tried_again_a_few_times_and_said_meanwhile(
    heads: Heads, store: Store, mlir: Artifact, resolver: InMemoryResolver
) -> None:
    resolver.known[NAME] = AWAY
    name = heads.export(submit_compile(store), mlir)
    reason = f"for toolchain {NAME} to be resolved; trying again: {AWAY}"
    heads.step_until(name, TaskState.QUEUED, reason)
    heads.step_until(name, TaskState.FAILED)
    assert len(resolver.asked) == 1 + len(RETRY_PAUSES_S)
    assert heads.time_s > sum(RETRY_PAUSES_S)


def test_a_build_that_fails_everywhere_fails_the_task_and_a_retry_builds_it_anew(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact
) -> None:
    executor.known_nodes = [NODE, replace(NODE, id="b")]
    name = heads.export(submit_compile(store), mlir)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a, b")
    executor.end_build(LOCK, "no space", "b")
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a")
    executor.end_build(LOCK, "no wheel")
    heads.step_until(name, TaskState.FAILED)
    failure = task(store, name).failure
    assert failure is not None
    assert failure.message == "node a: no wheel"
    store.retry(name)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a, b")
    executor.end_build(LOCK)
    heads.step_until(name, TaskState.RUNNING)


def test_what_failed_to_build_for_an_earlier_head_is_tried_again(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact
) -> None:
    store.record_lock(LOCK, None)
    executor.known_nodes = [replace(NODE, toolchains={LOCK.digest: "no wheel"})]
    name = heads.export(submit_compile(store), mlir)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a")
    executor.end_build(LOCK)
    heads.step_until(name, TaskState.RUNNING)


def test_what_was_computed_under_a_toolchain_before_is_taken_over_without_building_it(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact, cache: OutputCache, artifacts: ArtifactStore
) -> None:
    name = heads.compile(submit_compile(store), mlir)
    executor.end(only(executor), artifacts=(mlir,))
    heads.step_until(name, TaskState.SUCCEEDED)
    again = submit_compile(store)
    fresh = InMemoryExecutor(NODE)
    later = Heads(store, fresh, OutputCache(store, artifacts, cache.toolchain), InMemoryResolver(**{NAME: LOCK}))
    later.step_until(f"{again}-02", TaskState.CACHED)
    assert not fresh.asked
    assert not fresh.started


def test_tasks_that_compute_the_same_under_a_toolchain_run_once(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact
) -> None:
    jobs = [submit_compile(store), submit_compile(store)]
    heads.compile(jobs[0], mlir)
    heads.step_until(f"{jobs[1]}-02", TaskState.QUEUED, f"{jobs[0]}-02 computes the same")
    executor.end(only(executor), artifacts=(mlir,))
    heads.step_until(f"{jobs[1]}-02", TaskState.CACHED)


def test_a_lock_whose_toolchain_means_something_else_by_now_is_resolved_anew(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact, resolver: InMemoryResolver
) -> None:
    store.record_lock(LOCK, None)
    resolver.known[NAME] = LATER
    name = heads.export(submit_compile(store), mlir)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a")
    assert toolchains.all_current(store.database)[NAME].lock == LATER
    assert list(executor.asked) == [("a", LATER.digest)]


def test_an_update_reaches_tasks_that_wait(
    heads: Heads, executor: InMemoryExecutor, store: Store, mlir: Artifact
) -> None:
    name = heads.export(submit_compile(store), mlir)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} on node a")
    updated = replace(LATER, source=LOCK.source)
    store.record_lock(updated, LOCK.digest)
    until(lambda: heads.head.step() is not None and ("a", updated.digest) in executor.asked, "the new one is asked for")
    executor.end_build(updated)
    heads.step_until(name, TaskState.RUNNING)
    assert only(executor).toolchain == updated.digest


def test_a_head_that_stops_ends_what_it_resolves(
    store: Store, executor: InMemoryExecutor, cache: OutputCache, mlir: Artifact
) -> None:
    begun, ended = threading.Event(), threading.Event()

    class Slow(InMemoryResolver):
        def resolve(self, name: str, cancellation: Cancellation) -> Lock:
            cancellation.on_cancel(ended.set)
            begun.set()
            assert ended.wait(60)
            raise AWAY

    heads = Heads(store, executor, cache, Slow())
    name = heads.export(submit_compile(store), mlir)
    heads.step_until(name, TaskState.QUEUED, f"for toolchain {NAME} to be resolved")
    assert begun.wait(60)
    heads.head.detach()
    assert ended.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("resolve")]
