"""Gates in the head: what is slower than its past fails, what may be is measured again, and numbers say why."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from db.reports import TaskRow
from db.runs import Chosen, runs
from db.store import Store
from db.targets import QuotedTarget, keep
from jobs.spec import JobSpec
from jobs.state import FailureKind, TaskState
from jobs.task import Measurement
from orchestrator.head import Head
from tests.in_memory import InMemoryExecutor
from tests.integration.heads import artifacts as artifacts
from tests.integration.heads import executor as executor
from tests.integration.heads import head as head
from tests.integration.heads import only, outcomes, settle, task
from tests.integration.heads import reuse as reuse
from tests.stored_jobs import result_of, submit

QUIET = (100.0, 101.0, 100.4, 99.6, 100.2, 99.9, 100.6, 99.4)  #: medians of runs of the same
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  #: what one database shows
GATE = {"metrics": ["ttft_ms"]}


class World:
    """A head whose benchmarks come to what a test says."""

    def __init__(self, head: Head, store: Store, executor: InMemoryExecutor) -> None:
        self.head, self.store, self.executor = head, store, executor

    def job(self, *medians: float, disturbed: str = "", **keys: Any) -> TaskRow:
        """A benchmark that measures one median after the other, as long as it is run; it must want all of them."""
        job = submit(self.store, stages=["benchmark"], variants={"engine": "torch"}, **keys)
        for median in medians:
            settle(self.head)
            self.deliver(median, disturbed)
        settle(self.head)
        assert not self.executor.attempts
        return task(self.store, f"{job}-01")

    def deliver(self, median: float, disturbed: str) -> None:
        """What the one attempt that runs comes to."""
        context = {"batch": 1, "prompt_tokens": 64, **({"disturbed": disturbed} if disturbed else {})}
        samples = (median * 0.99, median, median * 1.3)
        measured = [Measurement("ttft_ms", samples, context)]
        self.executor.deliver(result_of(only(self.executor), None, measured, ()))

    def past(self, medians: Sequence[float] = QUIET, **keys: Any) -> None:
        for median in medians:
            assert self.job(median, **keys).state is TaskState.SUCCEEDED


@pytest.fixture
def world(head: Head, store: Store, executor: InMemoryExecutor) -> World:
    return World(head, store, executor)


@ON_SQLITE
def test_the_first_measurement_passes_and_says_that_there_was_nothing_to_compare_with(world: World) -> None:
    found = world.job(100.0, gate=GATE)
    assert found.state is TaskState.SUCCEEDED
    assert found.warnings == ("gate: ttft_ms passes: there is nothing to compare it with yet",)


@ON_SQLITE
def test_what_is_as_fast_as_before_passes_without_a_word(world: World) -> None:
    world.past()
    found = world.job(99.5, gate=GATE)
    assert (found.state, found.warnings, found.attempts) == (TaskState.SUCCEEDED, (), 1)


def test_what_is_slower_is_measured_again_and_then_fails_with_its_figures(world: World) -> None:
    world.past()
    found = world.job(107.0, 107.5, gate=GATE)
    assert outcomes(world.store, found.id) == [("failed", FailureKind.UNSURE), ("failed", FailureKind.TOO_SLOW)]
    assert found.state is TaskState.FAILED
    assert found.failure is not None
    assert (
        "ttft_ms (batch 1, prompt 64) 108 ms is slower than the last good 100 ms (8 runs): +7." in found.failure.message
    )
    assert "in 2 runs" in found.failure.message
    assert len(runs(world.store.database, Chosen(("ttft_ms",), tasks=(found.id,)))) == 2  # no sample is lost
    assert not any(run.is_good for run in runs(world.store.database, Chosen(("ttft_ms",), tasks=(found.id,))))


@ON_SQLITE
def test_a_slow_run_alone_turns_nothing_red(world: World) -> None:
    """And it counts as one of the good: the level is that of all runs, never the best of them."""
    world.past()
    found = world.job(104.0, 99.5, gate=GATE)
    assert outcomes(world.store, found.id) == [("failed", FailureKind.UNSURE), ("succeeded", None)]
    assert all(run.is_good for run in runs(world.store.database, Chosen(("ttft_ms",), tasks=(found.id,))))


@ON_SQLITE
def test_a_gate_that_may_not_measure_again_decides_at_once(world: World) -> None:
    world.past()
    assert world.job(104.0, gate={**GATE, "runs": 1}).attempts == 1
    assert world.job(120.0, gate={**GATE, "runs": 1}).state is TaskState.FAILED


@ON_SQLITE
def test_a_faster_level_is_the_new_measure(world: World) -> None:
    world.past()
    newer: dict[str, Any] = {"benchmark": {"warmup": 2}}
    world.past([median * 0.8 for median in QUIET], gate=GATE, **newer)
    assert world.job(100.0, 100.0, gate=GATE, **newer).state is TaskState.FAILED


@ON_SQLITE
def test_what_was_disturbed_is_not_judged(world: World) -> None:
    world.past()
    found = world.job(150.0, disturbed="others used 80% of 8 processors", gate=GATE)
    assert found.state is TaskState.SUCCEEDED
    assert found.warnings == ("gate: not judged: others used 80% of 8 processors",)


@ON_SQLITE
def test_runs_that_say_nothing_do_not_keep_a_cell_for_ever(world: World) -> None:
    world.past()
    gate = {**GATE, "runs": 3}
    job = submit(world.store, stages=["benchmark"], variants={"engine": "torch"}, gate=gate)
    for disturbed in ("", "others", "others"):
        settle(world.head)
        world.deliver(104.0, disturbed)
    settle(world.head)
    assert task(world.store, f"{job}-01").state is TaskState.SUCCEEDED
    assert not world.executor.attempts


@ON_SQLITE
def test_a_quoted_target_can_be_the_measure(world: World) -> None:
    found = world.job(100.0, gate={**GATE, "against": "target"})
    assert "nothing to compare" in found.warnings[0]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    quoted = QuotedTarget("tiny-*", "cpu", "ttft_ms", 1, 64, None, 80.0, "ms", "a page", "ada", now)
    keep(world.store.database, [quoted])
    world.past()
    slow = world.job(100.0, 100.0, gate={**GATE, "against": "target"})
    assert slow.state is TaskState.FAILED
    assert slow.failure is not None
    assert "than the target 80 ms (a page): +25" in slow.failure.message


@ON_SQLITE
def test_a_job_without_a_gate_passes_whatever_it_measures(world: World) -> None:
    world.past()
    assert world.job(500.0).state is TaskState.SUCCEEDED


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ({"metrics": ["perplexity"]}, "ttft_ms"),
        ({"metrics": ["ttft_ms", "ttft_ms"]}, "once"),
        ({"against": "yesterday"}, "last-good"),
        ({"against": "toolchain:"}, "toolchain"),
        ({"runs": 0}, "greater than or equal to 1"),
        ({"metrics": ["compile_s"]}, "compile_s needs the stage compile"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused(gate: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        JobSpec.model_validate({"name": "a", "model": "b", "stages": ["benchmark"], "gate": gate})
