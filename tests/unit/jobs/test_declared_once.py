"""A stage, engine, exporter, quantizer or target is one row of a table: adding a row changes nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from db.reads.matrix import CellRow, MatrixRow, Median
from jobs.engines import ENGINES, Engine, ProcessLayout
from jobs.errors import JobFileError
from jobs.exporters import EXPORTERS, stage_of
from jobs.job_file.spec import JobSpec
from jobs.metrics import METRICS, Metric
from jobs.plan import Plan, plan
from jobs.quantizers import QUANTIZERS, Quantizer, Scheme
from jobs.stages import STAGES
from jobs.stages.base import Model, Stage
from jobs.state import TaskState
from jobs.targets import TARGETS
from jobs.task import Command, Outcome, Resources
from jobs.toolchain_table import TOOLCHAINS, find_toolchain, result_packages, stages_of_toolchain, toolchain_for
from jobs.toolchains import Toolchain, ToolchainSpec
from jobs.variants import Attention, Axes, Precision
from orchestrator.imports.variant_names import parse_variant_name
from orchestrator.submission.job_file import load
from orchestrator.views.matrix_view import to_table

TINY = Model("tiny-llama", "tiny-llama", "d" * 64, 1_300_000)
LINT = Stage(
    name="lint",
    title="linted",
    needs=("export",),
    settings=lambda cell: {"target": cell.variant.target},
    commands=lambda settings, toolchain: [Command(("python", "-m", "lint", settings["target"]))],
    resources=lambda cell: Resources(),
    parse=lambda settings, folder: Outcome(),
    artifacts={"lint.json": "report"},
    figure=lambda medians, target: f"{medians['lint_s']:.0f} s on {target}",
)


def load_text(folder: Path, text: str) -> JobSpec:
    file = folder / "job.yaml"
    file.write_text(f"name: x\nmodel: tiny-llama\n{text}\n")
    return load(str(file)).spec


def stages_and_toolchains(planned: Plan) -> dict[str, str]:
    return {task.stage: task.toolchain for task in planned.tasks}


def test_a_stage_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(STAGES, "lint", LINT)
    monkeypatch.setitem(METRICS, "lint_s", Metric("lint", "s"))
    assert load_text(tmp_path, "").stages[-1] == "lint"
    spec = load_text(tmp_path, "stages: [export, lint]\nvariants: {toolchain: iree-3.12}\ngate: {metrics: lint_s}")
    assert stages_and_toolchains(plan(spec, TINY)) == {"export": "default", "lint": "iree-3.12"}
    (command,) = stage_of("lint", {"target": "cpu"}).commands({"target": "cpu"}, Toolchain("default", {}))
    assert command.argv == ("python", "-m", "lint", "cpu")
    with pytest.raises(JobFileError, match=r":3: stages: lint needs export"):
        load_text(tmp_path, "stages: [lint]")
    axes = Axes(precision=Precision.F16, attention=Attention.SDPA, tp=1).axes
    medians = (Median("lint_s", "s", 2.0, None, None),)
    cell = CellRow("j", "j-01", TaskState.SUCCEEDED, None, None, False, None, None, (), None, medians)
    table = to_table([MatrixRow("tiny", "TP1", "cpu", {"lint": cell}, **axes)])
    assert (table.columns, table.rows) == (("variant", "target", "linted"), (("TP1", "cpu", "PASS 2 s on cpu"),))


def test_a_portable_stage_stays_under_the_default_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "lint", replace(LINT, is_portable=True, is_default=False))
    assert toolchain_for("iree-3.12", "lint") == "default"
    assert "lint" not in JobSpec.model_validate({"name": "x", "model": "tiny-llama"}).stages


def test_an_engine_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine(
        "a toy",
        {"lint": replace(LINT, needs=())},
        ProcessLayout.OWN,
        precisions=frozenset({Precision.F32}),
        targets=frozenset({"cpu"}),
        packages=("toy-engine",),
    )
    monkeypatch.setitem(STAGES, "lint", LINT)
    monkeypatch.setitem(ENGINES, "toy", engine)
    monkeypatch.setitem(TOOLCHAINS, "toy-1", ToolchainSpec(("toy-engine",), engines=("toy",)))
    spec = load_text(tmp_path, "variants: {engine: toy, precision: f32, toolchain: toy-1}")
    planned = plan(spec, TINY)
    assert [variant.name for variant in planned.variants] == ["tiny-llama-FP32-TP1-toy-toy-1"]
    assert stages_and_toolchains(planned) == {"lint": "toy-1"}
    assert "toy-engine" in result_packages()
    for axes, key, says in [
        ("precision: f16", "precision", "runs only f32"),
        ("precision: f32, target: h100", "target", "runs only on cpu"),
        ("precision: f32, nodes: 2, tp: 2", "nodes", "run on one node"),
    ]:
        with pytest.raises(JobFileError, match=f":3: variants.engine: .*{says}") as caught:
            load_text(tmp_path, f"variants: {{engine: toy, {axes}}}")
        assert key in caught.value.message
    with pytest.raises(JobFileError, match="one of iree, torch, torch-compile, vllm, toy"):
        load_text(tmp_path, "variants: {engine: tog}")


def test_a_quantizer_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = Quantizer("a toy", {Precision.INT8: Scheme(("channel",))}, toolchain="toy-quant-1.2", package="toyquant")
    monkeypatch.setitem(QUANTIZERS, "toy-quant", row)
    assert find_toolchain("toy-quant-1.2").packages == ("toyquant==1.2.*",)
    assert stages_of_toolchain(find_toolchain("toy-quant-1.2")) == ("quantize",)
    planned = plan(load_text(tmp_path, "variants: {precision: int8, quantizer: toy-quant}"), TINY)
    task = planned.tasks[0]
    assert (task.stage, task.toolchain) == ("quantize", "toy-quant-1.2")
    (command,) = stage_of("quantize", task.settings).commands(task.settings, Toolchain("default", {}))
    assert command.argv[:3] == ("python", "-m", "workers.llm.quantizers.toy_quant")
    with pytest.raises(JobFileError, match=r":4: quantize.options.toy-quant.fast: toy-quant has no option fast"):
        load_text(tmp_path, "quantize:\n  options: {toy-quant: {fast: true}}")


def test_an_exporter_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(EXPORTERS, "toy", replace(EXPORTERS["haloctl"], stages={"lint": LINT}))
    monkeypatch.setitem(STAGES, "lint", LINT)
    planned = plan(load_text(tmp_path, "variants: {exporter: toy}\nstages: [export, lint]"), TINY)
    assert [variant.name for variant in planned.variants] == ["tiny-llama-FP16-TP1-toy"]


def test_a_target_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(TARGETS, "mi999", replace(TARGETS["mi300x"], fp8="", is_exclusive=True))
    planned = plan(load_text(tmp_path, "variants: {target: mi999}"), TINY)
    assert {task.resources.is_exclusive for task in planned.tasks if task.stage == "benchmark"} == {True}
    assert parse_variant_name("tiny-llama-FP16-TP1-mi999")[1].target == "mi999"
    with pytest.raises(JobFileError, match=r":3: variants.precision: IREE compiles no fp8 for mi999"):
        load_text(tmp_path, "variants: {target: mi999, precision: fp8}")
