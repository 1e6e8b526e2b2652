"""Programs that haloctl did not make: how jobs name, plan and judge them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.errors import JobFileError
from jobs.exporters import stage_of
from jobs.job_file.files import with_files
from jobs.job_file.job_checks import job_problem, program_problem
from jobs.job_file.spec import JobSpec
from jobs.models import resolve
from jobs.plan import PlannedTask, plan
from jobs.stages.base import Model
from jobs.state import FailureKind
from jobs.toolchain_table import TOOLCHAINS
from jobs.toolchains import Toolchain
from orchestrator.submission import job_file
from tests.integration.stage_programs import run_here
from tests.stored_jobs import spec_of
from workers.llm.programs import compare_results

TOOLCHAIN = Toolchain("default", {})
CALL = {"function": "scale", "inputs": [{"path": "/a.npy"}, "4x8xf32=2"], "expected": [{"path": "/want.npy"}]}


def tasks(file: str, **keys: Any) -> dict[str, PlannedTask]:
    spec = JobSpec.model_validate({"name": "x", "model": file, "program": CALL, **keys})
    made = plan(spec, Model(file, "scale", "d" * 64, 0, is_program=True))
    return {task.stage: task for task in made.tasks}


def argvs(task: PlannedTask) -> list[tuple[str, ...]]:
    return [command.argv for command in stage_of(task.stage, task.settings).commands(task.settings, TOOLCHAIN)]


def test_a_program_has_the_stages_that_mean_something_for_it() -> None:
    variants = {"engine": ["iree", "torch"], "kv_cache": ["contiguous", "paged"], "precision": "fp8", "tp": 2}
    planned = tasks("/x/scale.mlir", variants=variants)
    assert list(planned) == ["export", "compile", "invoke", "benchmark"]
    assert [variant.name for variant in planned["compile"].variants] == ["scale-FP8-TP2-given"]
    run, compare = argvs(planned["invoke"])
    assert run[:2] == ("iree-run-module", "--module=inputs/compile/model.vmfb")
    assert run[2:] == (
        *("--device=local-task", "--device=local-task", "--function=scale", "--input=@/a.npy", "--input=4x8xf32=2"),
        "--output=@outputs/result0.npy",
    )
    assert compare[-2:] == ("--expected=/want.npy", "--result=outputs/result0.npy")
    assert planned["invoke"].resources.devices == 2


@pytest.mark.parametrize(
    ("file", "made_by", "toolchain"),
    [
        ("/x/a.mlir", "take_over", "default"),
        ("/x/a.onnx", "import_onnx", "onnx"),
        ("/x/a.vmfb", "take_over", "default"),
    ],
)
def test_each_kind_of_file_is_taken_over_or_imported(file: str, made_by: str, toolchain: str) -> None:
    planned = tasks(file)
    (argv,) = argvs(planned["export"])
    assert argv[2].endswith(made_by)
    assert planned["export"].toolchain == toolchain
    (argv,) = argvs(planned["compile"])
    assert ("iree-compile" in argv) == (not file.endswith(".vmfb"))


def test_only_the_files_of_a_program_identify_it() -> None:
    assert tasks("/x/scale.mlir")["export"].key == tasks("/elsewhere/scale.mlir")["export"].key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: ./none.mlir", "none.mlir does not exist"),
        ("model: tiny-llama\nprogram: {inputs: [/etc/none.npy]}", "/etc/none.npy does not exist"),
        ("model: tiny-llama\nprogram: {inputs: ['@/etc/passwd']}", "does not exist"),
        ("model: tiny-llama\nprogram: {function: 'a b'}", "program.function"),
        ("model: tiny-llama\nprogram: {tolerance: .nan}", "program.tolerance"),
        ("model: tiny-llama\nvariants: {exporter: given}", "should be one of haloctl, sharktank"),
    ],
)
def test_what_is_no_program_is_refused_where_it_is(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: x\n{text}\n")
    with pytest.raises(JobFileError) as refused:
        job_file.load(str(file), TOOLCHAINS)
    assert message in str(refused.value)


def test_calls_without_a_program_are_refused() -> None:
    spec = JobSpec.model_validate({"name": "x", "model": "tiny-llama", "program": CALL})
    problem = program_problem(spec, [resolve("tiny-llama")])
    assert problem is not None
    assert (problem.keys, "no model is one" in problem.message) == ((("program",),), True)
    assert program_problem(with_files(spec_of(), lambda _, file: file), [resolve("tiny-llama")]) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stages": ["export", "compile"]}, "needs the stage numerics"),
        ({"variants": {"engine": "torch"}}, "no variant is one"),
    ],
)
def test_looking_for_a_layer_where_nobody_could_is_refused(keys: dict[str, Any], message: str) -> None:
    assert message in str(job_problem(spec_of(numerics={"where": "layers"}, **keys), TOOLCHAINS))


@pytest.mark.parametrize(
    ("result", "problem", "error"),
    [
        (np.array([[1.0, 2.0, 4.0]]), "", 0.0),
        (np.array([[1.0, 2.2, 4.0]], np.float16), "", 0.05),
        (np.array([1.0, 2.0, 4.0]), "result 0 has the shape [3], and [1, 3] is expected", None),
        (np.array([[1.0, np.nan, 4.0]]), "result 0 is not finite where it should be", None),
    ],
)
def test_results_are_compared_with_what_is_expected(
    tmp_path: Path, result: Any, problem: str, error: float | None
) -> None:
    np.save(tmp_path / "want.npy", np.array([[1.0, 2.0, 4.0]], np.float32))
    (tmp_path / "outputs").mkdir()
    np.save(tmp_path / "outputs" / "result0.npy", result)
    run_here(compare_results.main, tmp_path, "--expected=want.npy", "--result=outputs/result0.npy")
    report = json.loads((tmp_path / "outputs" / "results.json").read_text())
    assert report["problem"].startswith(problem)
    assert report["errors"] == ([] if error is None else [pytest.approx(error, rel=1e-2)])
    settings = tasks("/x/scale.mlir")["invoke"].settings
    outcome = stage_of("invoke", settings).parse(settings, tmp_path)
    assert (outcome.failure is None) == (error == 0.0)
    if outcome.failure:
        assert outcome.failure.kind is FailureKind.WRONG_NUMBERS


def test_a_file_that_is_no_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "want.npy").write_text("no array")
    with pytest.raises(Exception, match="is no array"):
        compare_results.read(tmp_path / "want.npy")
