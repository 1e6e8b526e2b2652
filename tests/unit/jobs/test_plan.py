"""Plans: equal work is planned once, and nothing that differs is."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.digest import task_digest
from jobs.job_file.job_checks import places_problem, weights_problem
from jobs.job_file.spec import JobSpec
from jobs.models import resolve
from jobs.plan import Plan, plan
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.targets import TARGETS, compile_flags
from jobs.task import GIB, Artifact, Device, Node, Pin
from jobs.toolchains import Toolchain
from orchestrator.submission.job_file import load

TINY = Model("tiny-llama", "tiny-llama", "d" * 64, 1_300_000)
SHAPE = Model("shape:llama3.1-70b", "llama3.1-70B", "e" * 64, 70_000_000_000, has_weights=False)


def counts(plan: Plan) -> dict[str, int]:
    return dict(Counter(task.stage for task in plan.tasks))


def test_one_export_serves_every_target() -> None:
    spec = load("demo").spec
    made = plan(spec, TINY)
    assert len(made.variants) == 8
    assert counts(made) == {"export": 5, "compile": 8, "invoke": 8, "numerics": 8, "benchmark": 8, "serve": 2}
    export = next(task for task in made.tasks if task.stage == "export")
    assert {variant.target for variant in export.variants} == {"cpu", "mi300x"}


def test_exclusions_leave_out_what_agrees_with_all_their_keys() -> None:
    spec = load("tiny-llama").spec
    made = plan(spec, TINY)
    assert {(variant.precision, variant.target) for variant in made.variants} == {
        ("f32", "cpu"),
        ("f16", "cpu"),
        ("f16", "mi300x"),
    }


def test_a_job_of_several_models_is_planned_for_each_with_its_own_exclusions() -> None:
    halo_matrix = load("halo-matrix")
    spec, sources = halo_matrix.spec, halo_matrix.sources
    first, *more = (Model(source.text, source.name, source.name, 1, has_weights=False) for source in sources)
    made = plan(spec, replace(first, more=tuple(more)))
    assert list(dict.fromkeys((variant.model, variant.tp) for variant in made.variants)) == [
        ("llama3.1-8B", 1),
        ("llama3.1-8B", 8),
        ("llama3.1-70B", 1),
        ("llama3.1-70B", 8),
        ("llama3.1-405B", 8),
    ]
    assert counts(made) == {"export": 20, "compile": 20, "analyse": 20}
    assert {task.settings["model"]["text"] for task in made.tasks if task.stage == "export"} == set(spec.model)


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


TWO_NODES = [
    Node("a", "", 8, 64 * GIB, tuple(Device("mi300x", index) for index in range(2))),
    Node("b", "", 8, 64 * GIB, (Device("mi300x", 0), Device("cpu", 0))),
]


def each(on: str, **variants: Any) -> JobSpec:
    asked = {"target": "mi300x", **variants}
    return JobSpec.model_validate({"name": "x", "model": "tiny-llama", "variants": asked, "benchmark": {"on": on}})


def test_a_benchmark_on_each_device_shares_all_that_is_not_measured() -> None:
    made = plan(each("each_device"), TINY, TWO_NODES)
    names = [f"tiny-llama-FP16-TP1@{place}" for place in ("a:0", "a:1", "b:0")]
    assert [variant.name for variant in made.variants] == names
    assert counts(made) == {"export": 1, "compile": 1, "invoke": 1, "numerics": 1, "benchmark": 3}
    timed = [task for task in made.tasks if task.stage == "benchmark"]
    assert [task.pin for task in timed] == [Pin("a", (0,)), Pin("a", (1,)), Pin("b", (0,))]
    assert [task.subject for task in timed] == [f"{name} mi300x" for name in names]
    rest = [task for task in made.tasks if task.stage != "benchmark"]
    assert {(task.pin, task.subject.partition(" ")[0]) for task in rest} == {(None, "tiny-llama-FP16-TP1")}


def test_a_benchmark_on_each_node_is_on_those_that_have_the_devices() -> None:
    made = plan(each("each_node", tp=[1, 2]), TINY, TWO_NODES)
    assert [variant.name for variant in made.variants] == [
        "tiny-llama-FP16-TP1@a",
        "tiny-llama-FP16-TP1@b",
        "tiny-llama-FP16-TP2@a",
    ]
    assert places_problem(each("each_node", tp=[1, 2]), TWO_NODES) is None
    assert "no node that is up has 3 x mi300x" in str(places_problem(each("each_node", tp=[1, 3]), TWO_NODES))
    assert "1 x h100" in str(places_problem(each("each_device", target=["cpu", "h100"]), TWO_NODES))
    assert places_problem(each("any", tp=[1, 3]), TWO_NODES) is None


@pytest.mark.parametrize("engine", ["iree", "torch"])
def test_a_benchmark_has_its_node_to_itself_as_the_job_says_or_the_target_needs(engine: str) -> None:
    def is_exclusive(target: str, **benchmark: bool) -> bool:
        asked = {"variants": {"target": target, "engine": engine}, "benchmark": benchmark}
        made = plan(JobSpec.model_validate({"name": "x", "model": "tiny-llama", **asked}), TINY)
        return made.tasks[-1].resources.is_exclusive

    assert (is_exclusive("cpu"), is_exclusive("mi300x")) == (True, False)
    assert (is_exclusive("cpu", exclusive=False), is_exclusive("mi300x", exclusive=True)) == (False, True)


def test_a_shape_is_refused_where_weights_are_needed() -> None:
    spec = JobSpec.model_validate({"name": "x", "model": "shape:llama3.1-70b"})
    assert "invoke, numerics, benchmark" in str(weights_problem(spec, resolve("shape:llama3.1-70b")))
    bare = spec.model_copy(update={"stages": ["export", "compile"]})
    assert weights_problem(bare, resolve("shape:llama3.1-70b")) is None


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
    asked_for = [name for name, stage in STAGES.items() if stage.is_default and name not in ("finetune", "quantize")]
    cells = [(variant, task.stage) for task in made.tasks for variant in task.variants]
    assert len(cells) == len(set(cells)) == len(made.variants) * len(asked_for)


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


def gated(toolchains: list[str], against: str, metrics: str = "itl_ms", **variants: Any) -> Plan:
    stages = ["export", "compile", "benchmark"]
    spec = {"name": "x", "model": "tiny-llama", "variants": {"toolchain": toolchains, **variants}, "stages": stages}
    return plan(JobSpec.model_validate({**spec, "gate": {"against": against, "metrics": metrics}}), TINY)


def comes_after(made: Plan) -> list[tuple[str, str, str]]:
    tasks = {task.key: task for task in made.tasks}
    return [(task.stage, task.subject, tasks[task.after].subject) for task in made.tasks if task.after]


@pytest.mark.parametrize("toolchains", [["iree-3.12", "iree-3.11", "default"], ["default", "iree-3.12", "iree-3.11"]])
def test_what_a_gate_compares_comes_after_what_it_is_compared_with_in_whatever_order(toolchains: list[str]) -> None:
    made = gated(toolchains, "toolchain:default", tp=[1, 2])
    assert [variant.toolchain for variant in made.variants][:2] == toolchains[:2]  # rows stay as they were asked for
    names = [name for name in toolchains if name != "default"]
    assert comes_after(made) == [
        ("benchmark", f"tiny-llama-FP16-TP{tp}-{name} cpu", f"tiny-llama-FP16-TP{tp} cpu")
        for tp, name in ((tp, name) for tp in (1, 2) for name in names)
    ]
    order = [task.key for task in made.tasks]
    assert all(order.index(task.after) < order.index(task.key) for task in made.tasks if task.after)
    alone = gated(toolchains, "last-good", tp=[1, 2])
    assert comes_after(alone) == []
    assert {task.key for task in alone.tasks} == set(order)  # what is computed is the same


def test_the_stage_that_a_gate_judges_is_the_one_that_waits() -> None:
    made = gated(["iree-3.12", "default"], "toolchain:default", "compile_s", target=["cpu", "mi300x"])
    assert [(stage, subject) for stage, subject, _ in comes_after(made)] == [
        ("compile", "tiny-llama-FP16-TP1-iree-3.12 cpu"),
        ("compile", "tiny-llama-FP16-TP1-iree-3.12 mi300x"),
    ]
    left_out = [{"toolchain": "default", "target": "cpu"}]
    made = gated(["iree-3.12", "default"], "toolchain:default", target=["cpu", "mi300x"], exclude=left_out)
    assert [subject for _, subject, _ in comes_after(made)] == ["tiny-llama-FP16-TP1-iree-3.12 mi300x"]
    assert comes_after(gated(["iree-3.12"], "toolchain:default")) == []


def test_on_each_device_it_waits_for_what_is_measured_there() -> None:
    spec = each("each_device", toolchain=["iree-3.12", "default"])
    gate = spec.model_validate({**spec.model_dump(), "gate": {"against": "toolchain:default"}})
    made = plan(gate, TINY, TWO_NODES)
    tasks = {task.key: task for task in made.tasks}
    assert [(task.pin, tasks[task.after].pin) for task in made.tasks if task.after] == [
        (pin, pin) for pin in (Pin("a", (0,)), Pin("a", (1,)), Pin("b", (0,)))
    ]
