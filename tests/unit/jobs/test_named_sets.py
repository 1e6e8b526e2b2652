"""Sets of compiler flags and of environment variables, named in a job file, side by side in one matrix."""

from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobFileError
from jobs.exporters import commands_of
from jobs.job_file.job_checks import flags_problem
from jobs.plan import PlannedTask, plan
from orchestrator.submission import job_file
from tests.stored_jobs import TINY, TOOLCHAIN, spec_of

SETS = {
    "flags": {"default": [], "o3": ["--iree-opt-level=O3"]},
    "env": ["default", {"name": "spin", "OMP_WAIT_POLICY": "active"}, {"name": "hash", "PYTHONHASHSEED": 0}],
}


def tasks(**changes: Any) -> dict[str, PlannedTask]:
    """The planned tasks by stage and variants."""
    planned = plan(spec_of(stages=["export", "compile", "benchmark"], **changes), TINY)
    return {f"{task.stage} {'+'.join(variant.name for variant in task.variants)}": task for task in planned.tasks}


def test_each_set_is_a_variant_that_has_its_name() -> None:
    names = {variant.name for task in tasks(variants=SETS).values() for variant in task.variants}
    stem = "tiny-llama-FP16-TP1"
    assert names == {f"{stem}{flags}{env}" for flags in ("", "-o3") for env in ("", "-spin", "-hash")}


def test_flags_go_to_the_compiler_beside_those_of_all() -> None:
    planned = tasks(variants={"flags": SETS["flags"]}, compile={"flags": ["--iree-opt-data-tiling=false"]})
    assert planned["compile tiny-llama-FP16-TP1"].settings["flags"] == ["--iree-opt-data-tiling=false"]
    assert planned["compile tiny-llama-FP16-TP1-o3"].settings["flags"] == [
        "--iree-opt-data-tiling=false",
        "--iree-opt-level=O3",
    ]
    assert "export tiny-llama-FP16-TP1+tiny-llama-FP16-TP1-o3" in planned, "an export has no flags: it is done once"


def test_flags_of_the_runtime_are_for_what_is_timed_and_compiled_once() -> None:
    sets = {"default": [], "one-core": ["--task_topology_group_count=1"], "o3": ["--iree-opt-level=O3"]}
    planned = tasks(variants={"flags": sets}, benchmark={"flags": ["--task_worker_spin_us=10"]})
    stem = "tiny-llama-FP16-TP1"
    assert planned[f"compile {stem}+{stem}-one-core"].settings["flags"] == []
    assert planned[f"benchmark {stem}"].settings["flags"] == ["--task_worker_spin_us=10"]
    timed = planned[f"benchmark {stem}-one-core"].settings
    step, *_, generation = (command.argv for command in commands_of("benchmark", timed, TOOLCHAIN))
    assert {"--task_worker_spin_us=10", "--task_topology_group_count=1"} < set(step)
    assert "--runtime-flag=--task_topology_group_count=1" in generation
    assert "flags" not in tasks()[f"benchmark {stem}"].settings


def test_what_changes_results_is_in_every_stage_and_what_changes_speed_in_those_that_measure() -> None:
    planned = tasks(variants={"env": SETS["env"]}, env={"MKL_CBWR": "AVX2"})
    shared = planned["export tiny-llama-FP16-TP1+tiny-llama-FP16-TP1-spin"]
    assert shared.settings["env"] == {"MKL_CBWR": "AVX2"}
    assert planned["export tiny-llama-FP16-TP1-hash"].settings["env"] == {"MKL_CBWR": "AVX2", "PYTHONHASHSEED": "0"}
    timed = planned["benchmark tiny-llama-FP16-TP1-spin"].settings
    assert timed["env"] == {"MKL_CBWR": "AVX2", "OMP_WAIT_POLICY": "active"}
    assert {command.env["OMP_WAIT_POLICY"] for command in commands_of("benchmark", timed, TOOLCHAIN)} == {"active"}


def test_a_job_without_sets_is_what_it_was() -> None:
    assert not [task for task in tasks().values() if "env" in task.settings]


def test_engines_without_a_compiler_have_no_flags() -> None:
    planned = plan(spec_of(stages=["benchmark"], variants={"engine": "torch", "flags": SETS["flags"]}), TINY)
    assert [variant.name for variant in planned.variants] == ["tiny-llama-FP16-TP1-torch"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env: {PATH: /tmp}", "4: env.PATH: PATH: names files"),
        ("env: {HSA_ENABLE_SDMB: 0}", "did you mean HSA_ENABLE_SDMA?"),
        ("env: {HTTP_PROXY: 'user:pw@proxy:1'}", "has credentials"),
        ("env: {OMP_DYNAMIC: true}", "4: env.OMP_DYNAMIC"),
        ("variants: {env: {a: {LD_PRELOAD: x}}}", "is not among the variables"),
        ("variants: {env: [a, a]}", "a `name` of their own"),
        ("variants: {env: {}}", "variants.env"),
        ("variants: {flags: {O3: []}}", "variants.flags"),
    ],
)
def test_what_is_no_set_is_refused_where_it_is(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: x\nmodel: tiny-llama\nstages: [export]\n{text}\n")
    with pytest.raises(JobFileError) as refused:
        job_file.load(str(file), {})
    assert message in str(refused.value)


def test_flags_of_a_set_are_checked_as_those_of_all() -> None:
    problem = flags_problem(spec_of(variants={"flags": {"a": ["--iree-load-plugin=/tmp/x.so"]}}), ())
    assert problem is not None
    assert problem.keys[0] == ("variants", "flags", "a", 0)
