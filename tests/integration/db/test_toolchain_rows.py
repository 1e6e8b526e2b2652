"""What toolchains stand for, what can't be run at all, and two toolchains side by side, as they are stored."""

from dataclasses import replace

import pytest

from db.reads import audit, machines, reports
from db.reads.matrix import matrix
from db.reads.results import results
from db.store import CacheHit, NewAttempt, Store
from db.writes import toolchains
from jobs.state import Failure, FailureKind, TaskState
from jobs.toolchains import Lock
from orchestrator.views import node_rows
from tests.queued import node
from tests.stored_jobs import TOOLCHAIN, attempt_of, bring, finish, open_task, result_of, submit

LOCK = Lock("iree-3.12", ("iree-base-compiler==3.12.0",), {"iree-base-compiler": "3.12.0"}, "3.11", True, "s" * 64)
OTHER = replace(LOCK, lines=("iree-base-compiler==3.12.1",))
UNRESOLVED = Failure(FailureKind.TOOLCHAIN, "toolchain iree-9.9 can't be resolved", "no version of iree==9.9")


def current(store: Store, name: str = LOCK.name) -> Lock:
    return toolchains.all_current(store.database)[name].lock


def test_a_name_stands_for_the_lock_that_was_kept_first_until_somebody_replaces_that_very_lock(store: Store) -> None:
    assert store.record_lock(LOCK, None).lock == LOCK
    assert store.record_lock(OTHER, None).lock == LOCK, "whoever was slower uses what the quicker one kept"
    assert current(store) == LOCK
    assert store.record_lock(OTHER, LOCK.digest).lock == OTHER
    assert store.record_lock(LOCK, LOCK.digest).lock == OTHER
    assert store.record_lock(LOCK, OTHER.digest).lock == LOCK, "and back again"
    assert current(store) == LOCK


def test_equal_locks_of_two_names_have_one_digest_and_are_built_once(store: Store) -> None:
    store.record_lock(LOCK, None)
    store.record_compiler_flags({LOCK.digest: {"--iree-hip-target"}})
    twin = replace(LOCK, name="ours", source="t" * 64)
    assert store.record_lock(twin, None).compiler_flags == frozenset({"--iree-hip-target"})
    assert (current(store, "ours"), current(store)) == (twin, LOCK)
    assert toolchains.of_digest(store.database, twin.digest) is not None
    assert toolchains.of_digest(store.database, "0") is None


def test_a_head_sees_what_the_toolchains_of_open_tasks_stand_for_now(store: Store) -> None:
    submit(store)
    assert store.snapshot().locks == {}
    submit(store, stages=["export", "compile"], variants={"toolchain": ["iree-3.12"]})
    assert store.snapshot().locks == {}
    store.record_lock(LOCK, None)
    assert store.snapshot().locks["iree-3.12"].compiler_flags is None
    store.record_compiler_flags({LOCK.digest: {"--x"}})
    assert store.snapshot().locks["iree-3.12"].compiler_flags == frozenset({"--x"})
    store.record_lock(OTHER, LOCK.digest)
    assert store.snapshot().locks["iree-3.12"].lock == OTHER


def test_what_is_not_for_a_toolchain_is_done_once_under_the_default(store: Store) -> None:
    job = submit(store, stages=["export", "compile"], variants={"toolchain": ["default", "iree-3.12"]})
    found = {(task.stage, task.toolchain) for task in reports.tasks(store.database, job)}
    assert found == {("export", "default"), ("compile", "default"), ("compile", "iree-3.12")}


def test_a_task_that_can_t_run_at_all_fails_without_an_attempt_and_says_why_everywhere(store: Store) -> None:
    job = submit(store, stages=["export"])
    task = f"{job}-01"
    store.queue([task])
    assert store.fail({task: UNRESOLVED}) == {task}
    assert store.fail({task: UNRESOLVED}) == set(), "it is not open any more"
    row = reports.task(store.database, task)
    assert (row.state, row.failure, row.attempts, row.has_failed_before) == (TaskState.FAILED, UNRESOLVED, 0, True)
    (cell,) = matrix(store.database, job=job)[0].stages.values()
    assert cell.failure == UNRESOLVED
    assert reports.events(store.database, task=task)[-1].detail == f"toolchain: {UNRESOLVED.message}"
    assert list(audit.violations(store.database)) == []
    store.retry(task)
    assert reports.task(store.database, task).failure is None
    bring(store, task, TaskState.SUCCEEDED)


def test_a_node_tells_what_it_can_t_build(store: Store) -> None:
    why = "toolchain iree-3.12 can't be built: no wheel\nfor this machine"
    store.record_nodes([node("a", toolchains={LOCK.digest: why, OTHER.digest: ""})])
    row = machines.node(store.database, "a")
    assert row.toolchains == {LOCK.digest: why, OTHER.digest: ""}
    assert list(node_rows.unavailable_reasons(row)) == ["toolchain iree-3.12 can't be built: no wheel for this machine"]
    store.record_nodes([node("a", toolchains={LOCK.digest: ""})])
    assert list(node_rows.unavailable_reasons(machines.node(store.database, "a"))) == []


def test_jobs_are_found_by_what_their_variants_run_under(store: Store) -> None:
    submit(store)
    job = submit(store, stages=["export", "compile"], variants={"toolchain": ["iree-3.12"]})
    assert [row.id for row in reports.jobs(store.database, toolchain="iree-*")] == [job]


def test_numbers_of_two_toolchains_stand_side_by_side_and_are_told_apart(store: Store) -> None:
    job = submit(store, stages=["export", "compile"], variants={"toolchain": ["default", "iree-3.12"]})
    lock = store.record_lock(LOCK, None).lock
    by_toolchain = {task.toolchain: task.id for task in reports.tasks(store.database, job) if task.stage == "compile"}
    bring(store, f"{job}-01", TaskState.SUCCEEDED)
    for name, under in (("default", TOOLCHAIN), ("iree-3.12", lock.toolchain(TOOLCHAIN))):
        task = by_toolchain[name]
        store.queue([task])
        attempt = attempt_of(open_task(store, task))
        store.start([NewAttempt(attempt, under, name)])
        finish(store, result_of(attempt))
    rows = [row for row in results(store.database, job=job, metric="compile_s") if row.stage == "compile"]
    assert sorted((row.variant, row.toolchain) for row in rows) == [
        ("tiny-llama-FP16-TP1", "default"),
        ("tiny-llama-FP16-TP1-iree-3.12", "iree-3.12"),
    ]
    (found,) = {row.task for row in results(store.database, job=job, toolchain="iree-*")}
    assert found == by_toolchain["iree-3.12"]
    (attempt_row,) = reports.attempts(store.database, found)
    assert (attempt_row.toolchain, attempt_row.lock) == ("iree-3.12", lock.digest)
    assert [row.toolchain for row in matrix(store.database, job=job)] == ["default", "iree-3.12"]
    (one,) = matrix(store.database, job=job, toolchain="iree-*")
    assert one.variant == "tiny-llama-FP16-TP1-iree-3.12"


def test_what_is_taken_over_is_called_after_what_its_task_runs_under(store: Store) -> None:
    """Names that stand for the same versions share what is computed."""
    jobs = [
        submit(store, stages=["export", "compile"], variants={"toolchain": [name]})
        for name in ("iree-3.12", "iree-3.12.0")
    ]
    for job in jobs:
        bring(store, f"{job}-01", TaskState.SUCCEEDED)
        store.queue([f"{job}-02"])
    attempt = attempt_of(open_task(store, f"{jobs[0]}-02"))
    store.start([NewAttempt(attempt, LOCK.toolchain(TOOLCHAIN), "same")])
    finish(store, result_of(attempt))
    assert store.record_cache_hits([CacheHit(f"{jobs[1]}-02", "same", f"{jobs[0]}-02")])
    found = {row.toolchain for row in results(store.database, job=jobs[1]) if row.stage == "compile"}
    assert found == {"iree-3.12.0"}
    assert results(store.database, job=jobs[1], toolchain="iree-3.12.0")


@pytest.mark.parametrize("toolchain", ["default", "iree-3.12"])
def test_a_matrix_of_all_jobs_holds_a_row_for_each_toolchain(store: Store, toolchain: str) -> None:
    submit(store, stages=["export"])
    submit(store, stages=["export", "compile"], variants={"toolchain": ["iree-3.12"]})
    assert [row.toolchain for row in matrix(store.database, toolchain=toolchain)] == [toolchain]
