"""The table of quantizers, their plans, and the settings that are refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from jobs.digest import task_digest
from jobs.errors import JobFileError
from jobs.exporters import stage_of
from jobs.job_file.job_checks import quantization_problem
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.quantizers import QUANTIZERS
from jobs.stages import STAGES
from jobs.stages.base import Model
from jobs.toolchain_table import is_known
from jobs.toolchains import DEFAULT, Toolchain
from jobs.variants import QUANTIZED
from orchestrator.submission.job_file import load
from workers.llm import quantizers

TINY = Model("tiny-llama", "tiny-llama", "d" * 64, 1_300_000)
GOOD = "name: x\nmodel: tiny-llama\n"
TOOLCHAIN = Toolchain(DEFAULT, {})


def spec_of(variants: dict[str, Any], **more: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "x", "model": "tiny-llama", "variants": variants, **more})


def planned(variants: dict[str, Any], model: Model = TINY, **more: Any) -> Plan:
    return plan(spec_of(variants, **more), model)


def names(made: Plan) -> list[str]:
    return [variant.name for variant in made.variants]


def test_every_quantizer_has_a_row_a_program_and_a_reason_for_what_it_does_not_make() -> None:
    programs = Path(str(quantizers.__file__)).parent
    for name, quantizer in QUANTIZERS.items():
        if quantizer.unusable:
            continue
        assert (programs / f"{name.replace('-', '_')}.py").is_file(), name
        assert is_known(quantizer.toolchain), name
        assert quantizer.schemes.keys() | quantizer.unsupported_precisions.keys() == QUANTIZED, name
        assert set(quantizer.required) <= quantizer.options.keys()


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("variants: {precision: fp8, quantizer: gptqmodel}", 3, "variants.quantizer", "weights only, so matmuls"),
        ("variants: {precision: int4, quantizer: bitsandbytes}", 3, "variants.quantizer", "are wrong on a CPU"),
        (
            "variants: {precision: fp8, quantizer: quark, kv_precision: fp8}",
            3,
            "variants.quantizer",
            "no scales for a KV cache",
        ),
        (
            "quantize:\n  options: {quark: {gptq: true}}",
            4,
            "quantize.options.quark.gptq",
            "quark has no option gptq: it has none",
        ),
        (
            "quantize:\n  options: {brevitas: {magr: 1}}",
            4,
            "quantize.options.brevitas.magr",
            "should be true or false, not 1",
        ),
        (
            "quantize:\n  options: {brevitas: {awq: both}}",
            4,
            "quantize.options.brevitas.awq",
            "should be one of scale, clip",
        ),
        (
            "quantize:\n  options: {brevitas: {act_equalization: fx}}",
            4,
            "quantize.options.brevitas.act_equalization",
            "not 'fx': Brevitas 0.13 traces",
        ),
        (
            "quantize:\n  options: {brevitas: {weight_equalization: true}}",
            4,
            "quantize.options.brevitas.weight_equalization",
            "weight_equalization: Brevitas 0.13",
        ),
        (
            "quantize:\n  options: {haloctl: {percentile: 10}}",
            4,
            "quantize.options.haloctl.percentile",
            "a number from 90 to 100",
        ),
        ("quantize:\n  text: nowhere.txt", 4, "quantize.text", "does not exist"),
        (
            "variants: {precision: int8, quantizer: llm-compressor}\nquantize:\n  granularity: tensor",
            5,
            "quantize.granularity",
            "llm-compressor makes int8 with one scale per channel",
        ),
        (
            "variants: {precision: fp8, quantizer: quark}\nquantize: {inputs: dynamic}",
            4,
            "quantize.inputs",
            "quark makes fp8 with static scales",
        ),
        ("variants: {precision: int4, quantizer: gguf}", 3, "variants.quantizer", "gguf needs the option file"),
        (
            "variants: {precision: int4, quantizer: gguf}\nquantize: {options: {gguf: {file: no.gguf}}}",
            4,
            "quantize.options.gguf.file",
            "no.gguf does not exist",
        ),
        ("variants: {exporter: sharktank, tp: 2}", 3, "variants.tp", "asserts a tensor parallelism of 1"),
        (
            "variants: {exporter: sharktank, precision: fp8}",
            3,
            "variants.precision",
            "only from the quantizer brevitas",
        ),
    ],
)
def test_what_a_quantizer_does_not_do_is_refused_with_what_it_does(
    tmp_path: Path, text: str, line: int | None, key: str, says: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"{GOOD}{text}\n")
    with pytest.raises(JobFileError, match=re.escape(says)) as caught:
        load(str(job))
    assert (caught.value.line, caught.value.key) == (line, key)


def test_nobody_quantizes_what_needs_none() -> None:
    variants = {"precision": ["f16", "fp8"], "quantizer": ["haloctl", "quark"]}
    made = planned(variants)
    assert names(made) == ["tiny-llama-FP16-TP1", "tiny-llama-FP8-TP1", "tiny-llama-FP8-TP1-quark"]
    assert [task.variants[0].precision for task in made.tasks if task.stage == "quantize"] == ["fp8", "fp8"]
    shape = Model("shape:llama3.1-8b", "llama3.1-8B", "", 8, has_weights=False)
    assert names(planned(variants, shape)) == ["llama3.1-8B-FP16-TP1", "llama3.1-8B-FP8-TP1"]
    quantized = Model("./x", "x", "", 8, is_quantized=True)
    for other in (shape, quantized):
        tasks = planned(variants, other).tasks
        assert not [task for task in tasks if task.stage == "quantize" or "is_quantized" in task.settings]


def test_what_is_quantized_is_exported_and_its_quantizer_runs_under_its_own_toolchain() -> None:
    made = planned({"precision": "fp8", "quantizer": ["haloctl", "quark"], "toolchain": ["default", "iree-3.12"]})
    quantize = {task.key: task for task in made.tasks if task.stage == "quantize"}
    assert {task.settings["quantizer"]: task.toolchain for task in quantize.values()} == {
        "haloctl": DEFAULT,
        "quark": "quark-0.13",
    }
    assert all(task.subject == "tiny-llama-FP8-TP1" + made_by(task.settings["quantizer"]) for task in quantize.values())
    exports = [task for task in made.tasks if task.stage == "export"]
    assert [task.needs for task in exports] == [(key,) for key in quantize]
    assert {task.toolchain for task in exports} == {DEFAULT}


def made_by(quantizer: str) -> str:
    return "" if quantizer == "haloctl" else f"-{quantizer}"


def test_the_options_of_a_quantizer_are_part_of_the_identity_of_its_task() -> None:
    stage = STAGES["quantize"]

    def digest(**quantize: Any) -> str:
        (task,) = [task for task in planned({"precision": "int8"}, quantize=quantize).tasks if task.stage == "quantize"]
        return task_digest(stage, task.settings, TOOLCHAIN, {})

    variations: list[dict[str, Any]] = [
        {},
        {"windows": 8},
        {"granularity": "tensor"},
        {"inputs": "dynamic"},
        {"options": {"haloctl": {"clip": True}}},
    ]
    assert len({digest(**options) for options in variations}) == len(variations)
    assert digest(options={"quark": {}}) == digest(group_size=32) == digest()


def test_options_reach_the_quantizer_as_they_were_given() -> None:
    made = planned(
        {"precision": "int4", "quantizer": "gptqmodel"},
        quantize={"group_size": 32, "options": {"gptqmodel": {"method": "awq"}}},
    )
    (command,) = STAGES["quantize"].commands(made.tasks[0].settings, TOOLCHAIN)
    assert command.argv[:3] == ("python", "-m", "workers.llm.quantizers.gptqmodel")
    assert {"--precision=int4", "--group-size=32", '--option=method="awq"'} <= set(command.argv)


def test_low_precision_without_a_quantizer_is_refused_unless_the_model_is_quantized() -> None:
    spec = spec_of({"precision": ["f16", "int4"]}, stages=["export", "compile"])
    assert "int4 needs quantize" in str(quantization_problem(spec, TINY))
    assert quantization_problem(spec, Model("./x", "x", "", 8, is_quantized=True)) is None
    assert quantization_problem(spec_of({}, stages=["export", "compile"]), TINY) is None


def test_exporters_stand_side_by_side() -> None:
    made = planned({"precision": ["f16", "fp8"], "quantizer": "brevitas", "exporter": ["haloctl", "sharktank"]})
    assert names(made) == [
        "tiny-llama-FP16-TP1",
        "tiny-llama-FP16-paged-TP1-sharktank",
        "tiny-llama-FP8-TP1-brevitas",
        "tiny-llama-FP8-paged-TP1-brevitas-sharktank",
    ]
    shark = [task for task in made.tasks if task.variants[0].exporter == "sharktank"]
    stages = ("export", "compile", "invoke", "numerics", "benchmark")
    assert [task.stage for task in shark] == [stage for stage in stages for _ in range(2)]
    plain, low = (task for task in shark if task.stage == "export")
    assert plain.toolchain == low.toolchain == "shark-3.8"
    argv = stage_of("export", low.settings).commands(low.settings, TOOLCHAIN)[0].argv
    assert argv[2] == "workers.llm.programs.shark_export"
    assert "--dataset=inputs/quantize/dataset.irpa" in argv
    assert low.needs == tuple(task.key for task in made.tasks if task.stage == "quantize")


@pytest.mark.parametrize(
    ("precision", "asked", "flags"),
    [("int4", {"group_size": 64}, ["--group-size=64"]), ("int8", {"inputs": "dynamic"}, ["--inputs=dynamic"])],
)
def test_a_shape_is_scaled_as_the_job_says_though_nobody_quantizes_it(
    precision: str, asked: dict[str, Any], flags: list[str]
) -> None:
    shape = Model("shape:llama3.1-8b", "llama3.1-8B", "", 8, has_weights=False)
    for model, expected in ((shape, flags), (TINY, [])):
        made = planned({"precision": precision}, model, stages=["quantize", "export"], quantize=asked)
        task = made.tasks[-1]
        (command,) = STAGES["export"].commands(task.settings, TOOLCHAIN)
        assert [word for word in command.argv if word in flags] == expected
