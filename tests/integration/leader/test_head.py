"""The leading loop over real databases, step by step: each result is stored once, and nothing hangs."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from db.connection.engine import Database, open_database
from db.reads import reports
from db.store import Store
from jobs.errors import ClusterUnreachable, DatabaseUnreachable
from jobs.stages.base import Model
from jobs.state import Failure, FailureKind, JobState, TaskState
from jobs.task import Artifact, Measurement, TaskResult
from orchestrator.context import Context
from orchestrator.follow.following import follow
from orchestrator.interrupts import Interrupts
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from orchestrator.leader.loop import LeaderLoop
from orchestrator.settings import from_environment
from tests.databases import LEADERS, PostgresServer
from tests.in_memory import NODE, InMemoryExecutor, InMemoryResolver
from tests.integration.attempts import DEADLINE_S, until
from tests.integration.heads import artifacts, cache, executor, head, mlir, only, outcomes, settle, task
from tests.stored_jobs import BROKEN, LOST, TINY, TOOLCHAIN, everything, give_back, submit
from workers.artifacts import ArtifactStore

__all__ = ["artifacts", "cache", "executor", "head", "mlir"]

NO_ROOM = "somebody else holds node a"
ENDED = Failure(FailureKind.CANCELLED, "cancelled")


def test_a_job_runs_to_its_end_and_each_result_is_stored_once(
    head: Head, store: Store, executor: InMemoryExecutor, mlir: Artifact
) -> None:
    job = submit(store)
    settle(head)
    while executor.attempts:
        for attempt in executor.attempts.values():
            executor.end(attempt, artifacts=(mlir,))
        settle(head)
    assert reports.job(store.database, job).state is JobState.SUCCEEDED
    assert executor.started == [f"{job}-{number:02}-1" for number in range(1, 6)]


def test_a_result_that_comes_twice_is_stored_once(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    submit(store, stages=["export"])
    settle(head)
    result = executor.end(only(executor))
    settle(head)
    before = everything(store.database)
    executor.deliver(result)
    executor.deliver(replace(result, failure=BROKEN))
    settle(head)
    assert everything(store.database) == before


def test_the_late_answer_of_an_attempt_that_somebody_gave_back_changes_nothing(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    name = f"{submit(store, stages=['export'])}-01"
    settle(head)
    late = only(executor)
    give_back(store, late.id)
    head.step()
    head.step()
    assert executor.cancelled == [late.id], "what nobody waits for any more is ended"
    assert executor.started == [late.id], "and nothing starts beside it"
    executor.end(late)
    settle(head)
    assert executor.started == [late.id, f"{name}-2"]
    executor.end(only(executor), BROKEN)
    settle(head)
    assert outcomes(store, name) == [("failed", FailureKind.NODE_LOST), ("failed", FailureKind.TOOL_FAILED)]
    assert task(store, name).state is TaskState.FAILED


def test_a_cancel_from_another_process_is_carried_out_once(
    head: Head, store: Store, executor: InMemoryExecutor, database_url: str
) -> None:
    job = submit(store, stages=["export", "compile"])
    settle(head)
    with open_database(database_url, create=False) as elsewhere:
        Store(elsewhere).request_cancel(job)
    settle(head)
    settle(head)
    assert executor.cancelled == [f"{job}-01-1"]
    assert task(store, f"{job}-01").state is TaskState.CANCELLING
    executor.end(only(executor), ENDED)
    settle(head)
    assert reports.job(store.database, job).state is JobState.CANCELLED
    assert executor.started == [f"{job}-01-1"]


def test_a_result_that_comes_with_the_wish_to_cancel_ends_the_task_as_cancelled(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    job = submit(store, stages=["export"])
    settle(head)
    executor.end(only(executor))
    store.request_cancel(job)
    settle(head)
    assert task(store, f"{job}-01").state is TaskState.CANCELLED
    assert everything(store.database)["measurements"] == []
    assert executor.cancelled == []


def test_a_node_without_room_after_all_leaves_the_task_queued_and_blames_nobody(
    store: Store, executor: InMemoryExecutor, cache: OutputCache
) -> None:
    time_s = [0.0]
    head = Head(store, executor, cache, InMemoryResolver(), clock=lambda: time_s[0])
    name = f"{submit(store, stages=['export'])}-01"
    executor.no_room = NO_ROOM
    for _ in range(20):
        settle(head)
        time_s[0] += 1.0
    row = task(store, name)
    assert (row.state, row.waits_for) == (TaskState.QUEUED, NO_ROOM)
    assert set(outcomes(store, name)) == {("failed", FailureKind.REQUEUED)}
    assert len(outcomes(store, name)) == 6, "after 0, 1, 2, 4, 8 and 16 s: the pauses double"
    executor.no_room = None
    for _ in range(2):
        time_s[0] += 60.0
        settle(head)
        executor.end(only(executor), LOST)
    settle(head)
    assert task(store, name).state is TaskState.RUNNING, "two of three tries were used"


def test_a_cluster_that_goes_while_an_attempt_is_handed_over_leaves_nothing_running(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    first, second = (f"{submit(store, stages=['export'], model=model)}-01" for model in two_models())
    settle(head)
    executor.end(executor.attempts[f"{first}-1"])
    executor.end(executor.attempts[f"{second}-1"], LOST)
    executor.refusal = ClusterUnreachable("Ray at head:6379", "nobody answers")
    with pytest.raises(ClusterUnreachable):
        head.step()
    assert task(store, first).state is TaskState.SUCCEEDED
    assert task(store, second).state is TaskState.QUEUED
    assert store.snapshot().running == ()


def two_models() -> Iterator[Model]:
    return (replace(TINY, digest=digit * 64) for digit in "ab")


class Stumbling(Store):
    """Its database is away when the first result comes."""

    stumbles = 1

    def finish(self, results: Sequence[TaskResult]) -> dict[str, TaskState]:
        if self.stumbles:
            self.stumbles -= 1
            raise DatabaseUnreachable("database", "it restarts")
        return super().finish(results)


def test_results_that_came_while_the_database_was_away_are_stored_later(
    database: Database, executor: InMemoryExecutor, artifacts: ArtifactStore
) -> None:
    store = Stumbling(database)
    head = Head(store, executor, OutputCache(store, artifacts, TOOLCHAIN), InMemoryResolver())
    names = [f"{submit(store, stages=['export'], model=model)}-01" for model in two_models()]
    settle(head)
    for attempt in executor.attempts.values():
        executor.end(attempt)
    with pytest.raises(DatabaseUnreachable):
        head.step()
    settle(head)
    assert [task(store, name).state for name in names] == [TaskState.SUCCEEDED] * 2
    assert len(executor.started) == 2


@pytest.mark.parametrize("bad", [Measurement("kl_max", (float("nan"),)), Measurement("no such metric", (1.0,))])
def test_a_result_that_cannot_be_stored_fails_its_task_and_no_other(
    head: Head, store: Store, executor: InMemoryExecutor, bad: Measurement
) -> None:
    first, second = (f"{submit(store, stages=['export'], model=model)}-01" for model in two_models())
    settle(head)
    result = TaskResult(f"{first}-1", 1, None, measurements=(bad,))
    executor.deliver(result)
    executor.end(executor.attempts[f"{second}-1"])
    settle(head)
    failure = task(store, first).failure
    assert failure is not None
    assert failure.kind is FailureKind.INTERNAL
    assert failure.message.startswith("its result can't be stored: ")
    assert "\n" not in failure.message
    assert task(store, second).state is TaskState.SUCCEEDED


def test_a_task_whose_node_is_lost_is_tried_three_times(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    name = f"{submit(store, stages=['export'])}-01"
    settle(head)
    while executor.attempts:
        executor.end(only(executor), LOST)
        settle(head)
    assert executor.started == [f"{name}-{number}" for number in (1, 2, 3)]
    assert task(store, name).state is TaskState.FAILED


def test_what_a_leader_that_is_gone_left_running_runs_again(head: Head, store: Store, cache: OutputCache) -> None:
    name = f"{submit(store, stages=['export'])}-01"
    settle(head)
    after = InMemoryExecutor(NODE)
    settle(Head(store, after, cache, InMemoryResolver()))
    assert after.started == [f"{name}-2"]
    assert outcomes(store, name) == [("failed", FailureKind.LEASE_LOST), ("", None)]


def test_handing_back_counts_as_no_try_however_often_and_the_next_one_goes_on(store: Store, cache: OutputCache) -> None:
    name = f"{submit(store, stages=['export'])}-01"
    for _ in range(4):
        executor = InMemoryExecutor(NODE)
        head = Head(store, executor, cache, InMemoryResolver())
        settle(head)
        assert len(executor.attempts) == 1
        head.stop()
        head.stop()
        assert executor.is_closed
        assert task(store, name).state is TaskState.QUEUED
    executor = InMemoryExecutor(NODE)
    head = Head(store, executor, cache, InMemoryResolver())
    for number in (5, 6):
        settle(head)
        assert only(executor).id == f"{name}-{number}"
        executor.end(only(executor), LOST)
    settle(head)
    assert task(store, name).state is TaskState.RUNNING
    executor.end(only(executor))
    settle(head)
    assert task(store, name).state is TaskState.SUCCEEDED


def test_handing_back_leaves_what_the_next_leader_started(
    head: Head, store: Store, executor: InMemoryExecutor, cache: OutputCache
) -> None:
    name = f"{submit(store, stages=['export'])}-01"
    settle(head)
    settle(Head(store, InMemoryExecutor(NODE), cache, InMemoryResolver()))
    head.stop()
    assert executor.is_closed
    assert task(store, name).state is TaskState.RUNNING
    assert [running.id for running in store.snapshot().running] == [f"{name}-2"]


def test_of_two_tasks_that_compute_the_same_one_runs_and_the_other_takes_over(
    head: Head, store: Store, executor: InMemoryExecutor, mlir: Artifact
) -> None:
    first, second = (f"{submit(store, stages=['export'])}-01" for _ in range(2))
    settle(head)
    assert executor.started == [f"{first}-1"]
    assert task(store, second).waits_for == f"{first} computes the same"
    executor.end(only(executor), artifacts=(mlir,))
    settle(head)
    assert task(store, second).state is TaskState.CACHED
    assert store.outputs(second) == (mlir,)
    assert executor.started == [f"{first}-1"]


def test_the_other_runs_when_the_one_that_computes_the_same_fails(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    first, second = (f"{submit(store, stages=['export'])}-01" for _ in range(2))
    settle(head)
    executor.end(only(executor), BROKEN)
    settle(head)
    assert executor.started == [f"{first}-1", f"{second}-1"]


def test_what_waits_for_the_same_work_that_no_node_can_do_is_unschedulable_too(
    head: Head, store: Store, executor: InMemoryExecutor
) -> None:
    executor.known_nodes = ()
    jobs = [submit(store, stages=["export"]) for _ in range(2)]
    settle(head)
    assert [reports.job(store.database, job).state for job in jobs] == [JobState.WAITING] * 2
    assert {row.waits_for for row in store.snapshot().tasks} == {"needs a node; the cluster has none"}


def test_what_was_computed_is_taken_over_until_its_artifacts_are_gone(
    head: Head, store: Store, executor: InMemoryExecutor, artifacts: ArtifactStore, mlir: Artifact
) -> None:
    first, second = (submit(store, stages=["export"]) for _ in range(2))
    settle(head)
    executor.end(only(executor), artifacts=(mlir,))
    settle(head)
    assert task(store, f"{second}-01").cached_from == f"{first}-01"
    artifacts.path(mlir.sha256).unlink()
    third = submit(store, stages=["export"])
    settle(head)
    assert only(executor).id == f"{third}-01-1"


def test_a_head_at_rest_notices_a_submission_of_another_process_at_once(
    head: Head, store: Store, executor: InMemoryExecutor, database_url: str
) -> None:
    settle(head)
    assert not head.step()
    with open_database(database_url, create=False) as elsewhere:
        submit(Store(elsewhere), stages=["export"])
    settle(head)
    assert len(executor.attempts) == 1


def test_a_head_at_rest_notices_a_node_that_came(head: Head, store: Store, executor: InMemoryExecutor) -> None:
    executor.known_nodes = ()
    submit(store, stages=["export"])
    settle(head)
    executor.known_nodes = (NODE,)
    until(lambda: head.step() and executor.attempts, "the node is used")


def test_what_a_task_waits_for_is_a_change_for_who_watches(store: Store) -> None:
    name = f"{submit(store)}-01"
    before = store.database.change_token()
    store.set_wait_reasons({name: ("needs 8 x mi300x", True)})
    assert store.database.change_token() != before


def test_following_a_job_that_nothing_can_run_ends_and_says_that_it_waits(
    database: Database, executor: InMemoryExecutor, artifacts: ArtifactStore
) -> None:
    executor.known_nodes = ()
    context = Context(from_environment(), database)
    job = submit(context.store, stages=["export"])
    loop = LeaderLoop(
        context,
        lambda: Head(context.store, executor, OutputCache(context.store, artifacts, TOOLCHAIN), InMemoryResolver()),
    )
    deadline = time.monotonic() + DEADLINE_S
    state = follow(context, loop, job, Interrupts(), lambda rows: None, deadline)
    loop.close()
    assert state is JobState.WAITING


def test_who_lost_the_lead_ends_what_it_runs_and_acts_no_more_until_it_leads_again(
    postgres: PostgresServer, artifacts: ArtifactStore
) -> None:
    with postgres.new_database() as url, open_database(url, create=False) as database:
        context = Context(from_environment(), database)
        executors: list[InMemoryExecutor] = []

        def make_head() -> Head:
            executors.append(InMemoryExecutor(NODE))
            return Head(
                context.store, executors[-1], OutputCache(context.store, artifacts, TOOLCHAIN), InMemoryResolver()
            )

        name = f"{submit(context.store, stages=['export'])}-01"
        loop = LeaderLoop(context, make_head)
        until(lambda: loop.step() and executors[0].attempts, "the task runs")
        with database.leader_lock() as other:
            postgres.cut(LEADERS)
            assert other.try_acquire()
            loop.step()
            assert not loop.is_leading
            assert executors[0].is_closed
            assert task(context.store, name).state is TaskState.QUEUED
            loop.step()
            assert len(executors) == 1
        until(lambda: loop.step() and executors[-1].attempts, "it leads and runs again")
        assert executors[-1].started == [f"{name}-2"]
        loop.close()
        assert outcomes(context.store, name) == [("failed", FailureKind.REQUEUED)] * 2
