"""Which tasks are cache hits of earlier jobs, and which run: decided by inputs and by the options of the submit."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from db.reads.results import results
from db.store import Store, Submission
from jobs.errors import BadSetting
from jobs.plan import plan
from jobs.problems import Problem
from jobs.state import TaskState
from jobs.task import Artifact, Pin
from orchestrator.leader.head import Head
from orchestrator.submission import job_file
from orchestrator.submission.preparation import run_again_from, start_problem
from tests.in_memory import InMemoryExecutor
from tests.integration.heads import artifacts, cache, executor, head, mlir, settle
from tests.stored_jobs import TINY, spec_of, submit
from workers.artifacts import ArtifactStore

__all__ = ["artifacts", "cache", "executor", "head", "mlir"]


@pytest.fixture
def first(head: Head, store: Store, executor: InMemoryExecutor, mlir: Artifact) -> str:
    """A job that has done every stage."""
    job = submit(store)
    run(head, executor, [mlir])
    return job


def run(head: Head, executor: InMemoryExecutor, made: Sequence[Artifact]) -> list[str]:
    """Let everything succeed and make the same; returns the stages that ran."""
    ran = []
    settle(head)
    while executor.attempts:
        for attempt in executor.attempts.values():
            ran.append(attempt.stage)
            executor.end(attempt, artifacts=made)
        settle(head)
    return ran


def ran_of(head: Head, store: Store, executor: InMemoryExecutor, made: Artifact, **changes: object) -> list[str]:
    """Return the stages that run for a job with these changes against the first."""
    job = submit(store, **changes)  # type: ignore[arg-type]
    ran = run(head, executor, [made])
    assert {task.state for task in store.snapshot().tasks if task.job == job} <= {TaskState.SUCCEEDED, TaskState.CACHED}
    return ran


def test_a_second_time_only_what_is_measured_runs(
    head: Head, store: Store, executor: InMemoryExecutor, first: str, mlir: Artifact
) -> None:
    assert ran_of(head, store, executor, mlir) == ["benchmark"]


@pytest.fixture
def other(artifacts: ArtifactStore, tmp_path: Path) -> Artifact:
    """The output of a compiler under other flags."""
    (tmp_path / "model.vmfb").write_text("another program")
    return artifacts.put(tmp_path / "model.vmfb", "vmfb")


def test_a_changed_flag_runs_what_is_compiled_and_what_follows_and_no_export(
    head: Head, store: Store, executor: InMemoryExecutor, first: str, other: Artifact
) -> None:
    ran = ran_of(head, store, executor, other, compile={"flags": ["--x"]})
    assert ran == ["compile", "invoke", "numerics", "benchmark"]


def test_what_follows_from_the_very_same_program_is_known_whatever_flags_made_it(
    head: Head, store: Store, executor: InMemoryExecutor, first: str, mlir: Artifact
) -> None:
    assert ran_of(head, store, executor, mlir, compile={"flags": ["--x"]}) == ["compile", "benchmark"]


def test_from_a_stage_on_everything_runs_again(
    head: Head, store: Store, executor: InMemoryExecutor, first: str, mlir: Artifact
) -> None:
    spec = spec_of()
    store.submit(
        Submission(
            plan=run_again_from("invoke", plan(spec, TINY)),
            name="again",
            spec={},
            model=TINY,
            submitted_by="ada",
            timeout_s=60.0,
            reuse=True,
        )
    )
    assert run(head, executor, [mlir]) == ["invoke", "numerics", "benchmark"]


@pytest.mark.parametrize("stage", ["link", "numerics"])
def test_a_stage_that_a_job_does_not_have_is_refused_with_those_that_it_has(stage: str) -> None:
    try:
        problem = start_problem(stage, spec_of(stages=["export", "compile"]))
    except BadSetting as error:
        assert stage == "link"
        assert str(error).endswith("its stages are export, compile")
    else:
        assert problem == Problem.at(
            "stages", message="--from numerics: the job has no stage numerics; its stages are export, compile"
        )


def test_measurements_are_taken_over_where_that_is_asked_for_and_they_are_of_no_certain_device(
    head: Head, store: Store, executor: InMemoryExecutor, first: str, mlir: Artifact
) -> None:
    assert ran_of(head, store, executor, mlir, reuse_measurements=True) == []
    again = submit(store, reuse_measurements=True)
    settle(head)
    assert {row.job for row in results(store.database, job=again)} == {again}
    pinned = submit(store, reuse_measurements=True, pin=Pin("a", (3,)), stages=["export", "compile", "benchmark"])
    assert run(head, executor, [mlir]) == ["benchmark"], pinned


@pytest.mark.parametrize(
    "text",
    [
        "variants: {tp: [1, 2], precision: f32}\nmodel:   tiny-llama\n\nworkload:\n    batch: 2\nname: x\n",
        "# this\nname: 'x'\nworkload: {batch: 2}\nvariants:\n  precision: [f32]\n  tp: [1, 2]\nmodel: tiny-llama",
    ],
)
def test_how_a_job_file_is_written_changes_nothing(tmp_path: Path, text: str) -> None:
    plans = []
    for written in ("name: x\nmodel: tiny-llama\nvariants: {precision: f32, tp: [1, 2]}\nworkload: {batch: 2}\n", text):
        (tmp_path / "job.yaml").write_text(written)
        plans.append(plan(job_file.load(str(tmp_path / "job.yaml")).spec, TINY))
    assert plans[0] == plans[1]
