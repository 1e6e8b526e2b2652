"""Gates between toolchains of one job, step by step: after the reference, on its device, whatever its outcome."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from db.reads import reports
from db.store import Store
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import GIB, Attempt, Device, Measurement, Node, Unfit
from jobs.toolchains import Lock
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from tests.in_memory import InMemoryExecutor, InMemoryResolver
from tests.integration.attempts import until
from tests.integration.heads import artifacts, cache, settle, state, task
from tests.stored_jobs import result_of, submit

__all__ = ["artifacts", "cache"]

LOCK = Lock("vllm", ("vllm==0.11",), {"vllm": "0.11"}, "3.11", is_over=False, source="s")
GPUS = tuple(Device("mi300x", index, f"s{index}") for index in range(4))
NODE = Node("a", "a.example", 64, 512 * GIB, GPUS)
JOB: dict[str, Any] = {
    "stages": ["benchmark"],
    "variants": {"engine": "vllm", "target": "mi300x", "toolchain": ["vllm", "default"]},  # the reference comes last
    "benchmark": {"exclusive": False},
    "gate": {"against": "toolchain:default", "metrics": ["ttft_ms"]},
}
BROKEN = Failure(FailureKind.TOOL_FAILED, "no kernel")

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  #: what one database shows


class World:
    """A head of one node with four GPUs; a test sets the results of its benchmarks."""

    def __init__(self, store: Store, cache: OutputCache) -> None:
        self.store, self.executor = store, InMemoryExecutor(NODE)
        self.head = Head(store, self.executor, cache, InMemoryResolver(vllm=LOCK))

    def job(self, **changes: Any) -> tuple[str, str]:
        """Submit a job; returns its reference task and the task compared with it, once the toolchain is built."""
        job = submit(self.store, **{**JOB, **changes})
        self.until(lambda: bool(self.executor.asked), "the toolchain is asked for")
        self.executor.end_build(LOCK)
        settle(self.head)
        return f"{job}-01", f"{job}-02"

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        until(lambda: bool(self.head.step() and False) or is_so(), what)

    def runs(self, name: str) -> tuple[str, ...]:
        """The serials of the devices that a task runs on now."""
        settle(self.head)
        return tuple(device.serial for device in self._attempt(name).devices)

    def come(self, name: str, median: float | Failure) -> None:
        """End the running attempt of a task with this median or failure."""
        settle(self.head)
        failure, numbers = None, list[Measurement]()
        if isinstance(median, Failure):
            failure = median
        else:
            numbers = [Measurement("ttft_ms", (median,), {"batch": 1, "prompt_tokens": 64})]
        self.executor.deliver(replace(result_of(self._attempt(name), failure, numbers, ()), artifacts=()))
        settle(self.head)

    def _attempt(self, name: str) -> Attempt:
        return next(attempt for attempt in self.executor.attempts.values() if attempt.id.startswith(name))

    def hold(self) -> str:
        """Submit another job, which holds the first free device; returns its task."""
        job = submit(self.store, stages=["benchmark"], variants={"engine": "torch", "target": "mi300x"})
        settle(self.head)
        return f"{job}-01"


@pytest.fixture
def world(store: Store, cache: OutputCache) -> World:
    return World(store, cache)


@ON_SQLITE
def test_a_reference_that_was_named_last_is_measured_first_and_the_other_on_its_device(world: World) -> None:
    other = world.hold()
    reference, compared = world.job()
    assert task(world.store, compared).after == reference
    assert world.runs(reference) == ("s1",)
    waiting = task(world.store, compared)
    assert (waiting.state, waiting.toolchain) == (TaskState.QUEUED, "vllm")
    assert waiting.waits_for == "after benchmark of tiny-llama-FP16-TP1-vllm mi300x, which it is compared with"
    world.come(other, 1.0)  # the first device is free again
    world.come(reference, 100.0)
    for _ in range(2):  # one run alone fails nothing
        assert world.runs(compared) == ("s1",)
        world.come(compared, 150.0)
    failure = task(world.store, compared).failure
    assert failure is not None
    assert failure.kind is FailureKind.TOO_SLOW
    assert "is slower than default 100 ms (1 run): +50.0%" in failure.message


@ON_SQLITE
@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_reference_that_has_no_numbers_stops_nothing_and_the_cell_says_why(world: World, end: str) -> None:
    reference, compared = world.job()
    if end == "cancelled":
        world.store.request_cancel(reference)
        settle(world.head)
        assert world.executor.cancelled == [f"{reference}-1"]
        world.come(reference, Failure(FailureKind.CANCELLED, "asked for"))
    else:
        world.come(reference, BROKEN)
    world.come(compared, 150.0)
    row = task(world.store, compared)
    assert row.state is TaskState.SUCCEEDED
    what = "failed" if end == "failed" else "was cancelled"
    because = f"there is nothing to compare it with: under default it {what} ({reference})"
    assert row.warnings == (f"gate: ttft_ms passes: {because}",)


@ON_SQLITE
def test_what_is_all_taken_from_the_cache_waits_for_nothing(world: World) -> None:
    first, compared = world.job(gate={**JOB["gate"], "runs": 1})
    world.come(first, 100.0)
    world.come(compared, 100.0)
    job = submit(world.store, **JOB, reuse_measurements=True)
    settle(world.head)
    assert [state(world.store, f"{job}-0{number}") for number in (1, 2)] == [TaskState.CACHED] * 2


@ON_SQLITE
def test_a_reference_from_the_cache_is_there_at_once_and_where_it_was_measured_counts(world: World) -> None:
    other = world.hold()
    alone = submit(world.store, **{**JOB, "variants": {**JOB["variants"], "toolchain": "default"}})
    world.come(f"{alone}-01", 100.0)
    world.come(other, 1.0)
    reference, compared = world.job(reuse_measurements=True)
    assert state(world.store, reference) is TaskState.CACHED
    assert world.runs(compared) == ("s1",)


@ON_SQLITE
def test_a_job_that_is_tried_again_has_the_same_order(world: World) -> None:
    reference, compared = world.job()
    world.store.request_cancel(reference.partition("-")[0])
    world.come(reference, Failure(FailureKind.CANCELLED, "asked for"))
    world.store.retry(reference.partition("-")[0])
    settle(world.head)
    assert [state(world.store, name) for name in (reference, compared)] == [TaskState.RUNNING, TaskState.QUEUED]
    world.come(reference, BROKEN)
    world.come(compared, BROKEN)
    world.store.retry(compared)  # alone: what it is compared with is left as it is
    settle(world.head)
    assert [state(world.store, name) for name in (reference, compared)] == [TaskState.FAILED, TaskState.RUNNING]


@ON_SQLITE
def test_where_the_reference_ran_may_be_taken_out_of_use_and_the_cell_says_so(world: World) -> None:
    reference, compared = world.job()
    world.store.record_nodes([NODE])
    assert world.runs(reference) == ("s0",)
    world.store.quarantine([Unfit("a", "too hot", "mi300x", 0)])
    world.come(reference, 100.0)
    assert world.runs(compared) == ("s1",)
    world.come(compared, 150.0)
    assert task(world.store, compared).warnings == (
        "gate: ttft_ms passes: there is nothing on s1 to compare it with yet, only on s0",
    )


def test_a_later_night_goes_where_the_last_good_runs_were_unless_that_is_taken(world: World) -> None:
    night: dict[str, Any] = {
        **JOB,
        "variants": {"engine": "torch", "target": "mi300x"},
        "gate": {"metrics": "ttft_ms", "runs": 1},
    }

    def measured() -> tuple[str, ...]:
        name = f"{submit(world.store, **night)}-01"
        ran = world.runs(name)
        world.come(name, 100.0)
        return ran

    other = world.hold()
    assert measured() == ("s1",)
    world.come(other, 1.0)
    assert [measured() for _ in range(2)] == [("s1",)] * 2
    holding = [world.hold(), world.hold()]
    assert measured() == ("s2",)
    for held in holding:
        world.come(held, 1.0)
    assert measured() == ("s1",)
    assert not any(row.warnings for row in reports.tasks(world.store.database, other.partition("-")[0]))


def test_what_another_toolchain_came_to_in_an_earlier_job_is_looked_for_on_its_device(world: World) -> None:
    other = world.hold()
    alone = submit(world.store, **{**JOB, "variants": {**JOB["variants"], "toolchain": "default"}})
    world.come(f"{alone}-01", 100.0)
    world.come(other, 1.0)
    job = submit(world.store, **{**JOB, "variants": {**JOB["variants"], "toolchain": "vllm"}})
    world.until(lambda: bool(world.executor.asked), "the toolchain is asked for")
    world.executor.end_build(LOCK)
    assert world.runs(f"{job}-01") == ("s1",)
