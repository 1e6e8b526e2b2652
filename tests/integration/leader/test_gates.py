"""Gates in the head: a slower run fails, a doubtful one is measured again, and numbers say why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from db.reads import reports
from db.reads.reports import TaskRow
from db.reads.run_filter import RunFilter
from db.reads.runs import runs
from db.store import Store
from db.writes.imports import ImportedCell, import_cells
from db.writes.targets import QuotedTarget, keep
from jobs.job_file.job_checks import job_problem
from jobs.job_file.spec import JobSpec
from jobs.state import FailureKind, JobState, TaskState
from jobs.task import Measurement
from jobs.toolchain_table import TOOLCHAINS
from orchestrator.analysis import sides
from orchestrator.analysis.comparisons import Comparison
from orchestrator.analysis.verdicts import Verdict
from orchestrator.imports.variant_names import parse_variant_name
from orchestrator.leader.head import Head
from orchestrator.reruns import interleaved
from tests.in_memory import NODE, InMemoryExecutor
from tests.integration.heads import artifacts as artifacts
from tests.integration.heads import cache as cache
from tests.integration.heads import context_of, only, outcomes, settle, task
from tests.integration.heads import executor as executor
from tests.integration.heads import head as head
from tests.stored_jobs import result_of, submit
from workers.toolchain_probe import probe_toolchain

QUIET = (100.0, 101.0, 100.4, 99.6, 100.2, 99.9, 100.6, 99.4)  #: medians of runs of the same
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  #: what one database shows
GATE = {"metrics": ["ttft_ms"]}
VARIANT = "tiny-llama-FP16-TP1-torch"


class World:
    """A head with benchmarks that return the medians of a test."""

    def __init__(self, head: Head, store: Store, executor: InMemoryExecutor) -> None:
        self.head, self.store, self.executor = head, store, executor
        self.versions: Mapping[str, str] = {}  #: that results tell of
        self.variables: Mapping[str, str] = {}  #: that results were measured under
        self.tells_energy = False

    def job(self, *medians: float, disturbed: str = "", **keys: Any) -> TaskRow:
        """Run a benchmark that measures one median per attempt; it must use all of them."""
        job = submit(self.store, stages=["benchmark"], variants={"engine": "torch"}, **keys)
        for median in medians:
            settle(self.head)
            self.deliver(median, disturbed)
        settle(self.head)
        assert not self.executor.attempts
        return task(self.store, f"{job}-01")

    def deliver(self, median: float, disturbed: str) -> None:
        """End the one running attempt with this median, and as many tokens per joule where the device tells energy."""
        context: dict[str, Any] = {"batch": 1, "prompt_tokens": 64, "variables": self.variables}
        context |= {"disturbed": disturbed} if disturbed else {}
        samples = (median * 0.99, median, median * 1.3)
        measured = [Measurement("ttft_ms", samples, context)]
        measured += [Measurement("decode_tokens_per_j", samples, context)] if self.tells_energy else []
        result = result_of(only(self.executor), None, measured, ())
        self.executor.deliver(replace(result, versions=self.versions or result.versions))

    def past(self, medians: Sequence[float] = QUIET, **keys: Any) -> None:
        for median in medians:
            assert self.job(median, **keys).state is TaskState.SUCCEEDED


@pytest.fixture
def world(head: Head, store: Store, executor: InMemoryExecutor) -> World:
    return World(head, store, executor)


@ON_SQLITE
def test_the_first_measurement_passes_and_says_that_there_was_nothing_to_compare_with(world: World) -> None:
    row = world.job(100.0, gate=GATE)
    assert row.state is TaskState.SUCCEEDED
    assert row.warnings == ("gate: ttft_ms passes: there is nothing to compare it with yet",)


@ON_SQLITE
def test_what_is_as_fast_as_before_passes_without_a_word(world: World) -> None:
    world.past()
    row = world.job(99.5, gate=GATE)
    assert (row.state, row.warnings, row.attempts) == (TaskState.SUCCEEDED, (), 1)


def test_what_is_slower_is_measured_again_and_then_fails_with_its_figures(world: World) -> None:
    world.past()
    row = world.job(107.0, 107.5, gate=GATE)
    assert outcomes(world.store, row.id) == [("failed", FailureKind.INCONCLUSIVE), ("failed", FailureKind.TOO_SLOW)]
    assert row.state is TaskState.FAILED
    assert row.failure is not None
    assert (
        "ttft_ms (batch 1, prompt 64) 107 ms is slower than the last good 100 ms (8 runs): +7." in row.failure.message
    )
    assert "in 2 runs" in row.failure.message
    assert len(runs(world.store.database, RunFilter(("ttft_ms",), tasks=(row.id,)))) == 2  # no sample is lost
    assert not any(run.is_good for run in runs(world.store.database, RunFilter(("ttft_ms",), tasks=(row.id,))))


@ON_SQLITE
def test_what_takes_more_energy_fails_and_what_no_device_tells_passes_with_a_warning(world: World) -> None:
    gate = {"metrics": ["decode_tokens_per_j"]}
    world.tells_energy = True
    world.past()
    row = world.job(85.0, 85.4, gate=gate)
    assert row.failure is not None
    assert "tokens/J is worse than the last good 100 tokens/J (8 runs): +17" in row.failure.message
    world.tells_energy = False
    row = world.job(100.0, gate=gate)
    assert (row.state, row.warnings) == (
        TaskState.SUCCEEDED,
        ("gate: decode_tokens_per_j passes: it was not measured",),
    )


@ON_SQLITE
def test_what_was_measured_under_other_variables_is_no_baseline(world: World) -> None:
    world.past()
    world.variables = {"IREE_PY_RUNTIME": "tracy"}
    row = world.job(200.0, gate=GATE)
    assert row.state is TaskState.SUCCEEDED
    assert row.warnings == (
        "gate: ttft_ms passes: there is nothing to compare it with: earlier runs had other environment variables "
        "(IREE_PY_RUNTIME not set to tracy)",
    )


@ON_SQLITE
def test_a_slow_run_alone_turns_nothing_red(world: World) -> None:
    """The run counts as a good one: the level is that of all runs, never the best of them."""
    world.past()
    row = world.job(104.0, 99.5, gate=GATE)
    assert outcomes(world.store, row.id) == [("failed", FailureKind.INCONCLUSIVE), ("succeeded", None)]
    assert all(run.is_good for run in runs(world.store.database, RunFilter(("ttft_ms",), tasks=(row.id,))))


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
    row = world.job(150.0, disturbed="others used 80% of 8 processors", gate=GATE)
    assert row.state is TaskState.SUCCEEDED
    assert row.warnings == ("gate: not judged: others used 80% of 8 processors",)


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
    row = world.job(100.0, gate={**GATE, "against": "target"})
    assert "nothing to compare" in row.warnings[0]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    quoted = QuotedTarget("tiny-*", "cpu", "ttft_ms", 1, 64, None, 80.0, "ms", "a page", "ada", now)
    keep(world.store.database, [quoted])
    world.past()
    slow = world.job(100.0, 100.0, gate={**GATE, "against": "target"})
    assert slow.state is TaskState.FAILED
    assert slow.failure is not None
    assert "than the target 80 ms (a page): +25" in slow.failure.message


@ON_SQLITE
def test_what_was_imported_is_no_measure_of_what_ran_here(world: World) -> None:
    """Imported runs change neither the level nor the noise of a gate, wherever they claim to have run."""
    model, variant = parse_variant_name(VARIANT, "cpu")

    def claim(*medians: float) -> None:
        for median in medians:
            numbers = (Measurement("ttft_ms", (median,), {"batch": 1, "prompt_tokens": 64}),)
            at = datetime(2026, 1, 1, tzinfo=UTC)
            cell = ImportedCell(model, variant, "benchmark", at, f"claim {median}", None, numbers)
            import_cells(world.store.database, [cell], "page.md", "ada", NODE.id)

    claim(50.0, 51.0)
    (first, *others) = QUIET
    row = world.job(first, gate=GATE)
    assert "there is nothing to compare it with yet" in row.warnings[0]
    world.past(others)
    claim(30.0, 200.0, 400.0)
    places = {run.place for run in runs(world.store.database, RunFilter(("ttft_ms",)))}
    assert len(places) == 1  # it looks as if it were the same
    assert world.job(100.1, gate=GATE).warnings == ()
    assert world.job(107.0, 107.5, gate=GATE).state is TaskState.FAILED


@ON_SQLITE
def test_what_ran_on_other_devices_alone_is_named(world: World) -> None:
    world.past()
    world.executor.known_nodes = [replace(NODE, id="b")]
    (warning,) = world.job(150.0, gate=GATE).warnings
    assert warning == "gate: ttft_ms passes: there is nothing on b to compare it with yet, only on a"


@ON_SQLITE
def test_many_times_as_slow_fails_though_little_is_known(world: World) -> None:
    """With one run and published noise, a clear result fails the gate, and an open one is reported."""
    world.past([100.0])
    row = world.job(220.0, 230.0, gate=GATE)
    assert row.state is TaskState.FAILED
    assert row.failure is not None
    assert "ttft_ms (batch 1, prompt 64) 225 ms is slower than the last good 100 ms (1 run)" in row.failure.message
    row = world.job(112.0, 112.0, gate={**GATE, "runs": 2})
    assert row.state is TaskState.SUCCEEDED
    (warning,) = row.warnings
    assert warning.startswith("gate: passes without another measurement: ttft_ms (batch 1, prompt 64) 112 ms may be")


def run_interleaved(world: World, folder: Path, task_id: str, medians: Sequence[float]) -> list[Comparison]:
    """Run `compare TASK TASK --run` with runs that have these medians; all of them must be used."""
    context = context_of(world.store.database, folder)
    chosen, left = RunFilter(("ttft_ms",), result=task_id), list(medians)
    side = sides.read_side(world.store.database, task_id, chosen)

    def wait(job: str, deadline: float | None = None) -> JobState:
        settle(world.head)
        world.deliver(left.pop(0), "")
        settle(world.head)
        return reports.job(world.store.database, job).state

    budget = interleaved.RunBudget(runs=len(medians))
    comparisons = interleaved.run_rounds(context, (side, side), (chosen, chosen), 2.0, budget, wait)
    assert not left
    return comparisons


@ON_SQLITE
def test_a_program_compared_with_itself_tells_gates_how_much_its_device_varies(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is 6% slower fails where runs vary by 1%, and passes where they were seen to vary by 7%."""
    world.versions = probe_toolchain(tmp_path / "data" / "cache").versions
    world.past()
    slower, gate = (106.0, 106.5), {**GATE, "runs": 2}
    before = world.job(*slower, gate=gate)
    assert before.state is TaskState.FAILED
    (cell,) = run_interleaved(world, tmp_path, before.id, [93.0, 107.0, 93.0, 107.0, 94.0, 109.0, 91.0, 108.0])
    assert (cell.old_variant, cell.new_variant, cell.old_runs, cell.new_runs) == (VARIANT, VARIANT, 4, 4)
    assert cell.verdict is Verdict.INCONCLUSIVE
    output = capsys.readouterr().err
    assert "against itself, interleaved on " in output
    assert "ttft_ms (batch 1, prompt 64): noise 8.1% in 8 runs of the same" in output
    assert world.job(*slower, gate=gate).state is TaskState.SUCCEEDED


@ON_SQLITE
def test_a_job_without_a_gate_passes_whatever_it_measures(world: World) -> None:
    world.past()
    assert world.job(500.0).state is TaskState.SUCCEEDED


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"metrics": ["perplexity"]}, "ttft_ms"),
        ({"metrics": ["ttft_ms", "ttft_ms"]}, "once"),
        ({"against": "yesterday"}, "last-good"),
        ({"against": "toolchain:"}, "toolchain"),
        ({"runs": 0}, "greater than or equal to 1"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobSpec.model_validate({"name": "a", "model": "b", "stages": ["benchmark"], "gate": gate})


def test_a_gate_on_a_metric_that_no_stage_of_the_job_measures_is_refused() -> None:
    spec = {"name": "a", "model": "b", "stages": ["export"], "gate": {"metrics": ["compile_s"]}}
    problem = job_problem(JobSpec.model_validate(spec), TOOLCHAINS)
    assert problem is not None
    assert "compile_s needs the stage compile" in problem.message
