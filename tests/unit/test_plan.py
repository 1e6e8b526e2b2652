"""Plans: equal work is planned once, and nothing that differs is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.digest import task_digest
from jobs.plan import Plan, plan, weightless_problem
from jobs.spec import JobSpec
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.targets import TARGETS, compile_flags
from jobs.task import Artifact
from jobs.toolchains import Toolchain
from orchestrator.job_file import load

TINY = Model("tiny-llama", "tiny-llama", "d" * 64, 1_300_000)
SHAPE = Model("shape:llama3.1-70b", "llama3.1-70B", "e" * 64, 70_000_000_000, has_weights=False)


def counts(plan: Plan) -> dict[str, int]:
    return {stage: sum(task.stage == stage for task in plan.tasks) for stage in STAGES}


def test_one_export_serves_every_target() -> None:
    spec, _ = load("demo")
    made = plan(spec, TINY)
    assert len(made.variants) == 6
    assert counts(made) == {"export": 3, "compile": 6, "invoke": 6, "numerics": 6, "benchmark": 6}
    export = next(task for task in made.tasks if task.stage == "export")
    assert {variant.target for variant in export.variants} == {"cpu", "mi300x"}


def test_exclusions_leave_out_what_agrees_with_all_their_keys() -> None:
    spec, _ = load("tiny-llama")
    made = plan(spec, TINY)
    assert {(variant.precision, variant.target) for variant in made.variants} == {
        ("f32", "cpu"),
        ("f16", "cpu"),
        ("f16", "mi300x"),
    }


def test_variants_are_called_as_trackers_call_them() -> None:
    spec = JobSpec.model_validate(
        {
            "name": "x",
            "model": "shape:llama3.1-70b",
            "overrides": {"num_hidden_layers": 4},
            "variants": {"tp": [1, 8], "attention": ["sdpa", "eager"]},
        }
    )
    model = Model("shape:llama3.1-70b", "llama3.1-70B", "", 1, has_weights=False, overrides=spec.overrides)
    assert [variant.name for variant in plan(spec, model).variants] == [
        "llama3.1-70B-L4-FP16-TP1",
        "llama3.1-70B-L4-FP16-TP8",
        "llama3.1-70B-L4-FP16-decomposed-TP1",
        "llama3.1-70B-L4-FP16-decomposed-TP8",
    ]


def test_a_shape_is_refused_where_weights_are_needed() -> None:
    spec = JobSpec.model_validate({"name": "x", "model": "shape:llama3.1-70b"})
    assert "invoke, numerics, benchmark" in str(weightless_problem(spec, SHAPE))
    bare = spec.model_copy(update={"stages": ["export", "compile"]})
    assert weightless_problem(bare, SHAPE) is None


@given(st.data())
def test_every_task_comes_after_what_it_needs(data: st.DataObject) -> None:
    spec = JobSpec.model_validate(
        {
            "name": "x",
            "model": "tiny-llama",
            "variants": {
                "precision": data.draw(st.lists(st.sampled_from(["f32", "f16", "bf16"]), min_size=1, unique=True)),
                "tp": data.draw(st.lists(st.integers(1, 8), min_size=1, unique=True)),
                "target": data.draw(st.lists(st.sampled_from(sorted(TARGETS)), min_size=1, unique=True)),
                "attention": data.draw(st.lists(st.sampled_from(["sdpa", "eager"]), min_size=1, unique=True)),
            },
        }
    )
    made = plan(spec, TINY)
    done: set[str] = set()
    for task in made.tasks:
        assert set(task.needs) <= done
        done.add(task.key)
    cells = [(variant, task.stage) for task in made.tasks for variant in task.variants]
    assert len(cells) == len(set(cells)) == len(made.variants) * len(STAGES)


def test_the_order_of_keys_does_not_change_a_digest_and_a_flag_does() -> None:
    toolchain = Toolchain("default", {"iree-base-compiler": "3.13.0"})
    stage, settings = STAGES["compile"], {"target": "cpu", "tp": 1, "flags": []}
    mlir = {"export": [Artifact("model.mlir", "mlir", "a" * 64, 1)]}
    same = task_digest(stage, dict(reversed(list(settings.items()))), toolchain, mlir)
    assert task_digest(stage, settings, toolchain, mlir) == same
    assert task_digest(stage, {**settings, "flags": ["--x"]}, toolchain, mlir) != same
    newer = Toolchain("default", {"iree-base-compiler": "3.14.0"})
    assert task_digest(stage, settings, newer, mlir) != same
    other = {"export": [Artifact("model.mlir", "mlir", "b" * 64, 1)]}
    assert task_digest(stage, settings, toolchain, other) != same


def test_where_a_model_lies_is_not_part_of_what_it_is() -> None:
    toolchain, stage = Toolchain("default", {}), STAGES["export"]

    def digest(text: str, content: str) -> str:
        return task_digest(stage, {"model": {"text": text, "digest": content}}, toolchain, {})

    assert digest("/a/model", "1") == digest("/b/model", "1") != digest("/a/model", "2")


@pytest.mark.parametrize(("known", "spelled"), [({"--iree-rocm-target"}, "rocm"), ({"--iree-hip-target"}, "hip")])
def test_flags_are_spelled_as_the_installed_compiler_knows_them(known: set[str], spelled: str) -> None:
    flags = compile_flags("mi300x", 2, known)
    assert flags == [
        "--iree-hal-target-device=hip[0]",
        "--iree-hal-target-device=hip[1]",
        f"--iree-{spelled}-target=gfx942",
    ]
