"""The SHARK route without sharktank itself: device pipelines in plans, arguments of its programs, rotary embeddings."""

import re
from pathlib import Path
from typing import Any

import pytest

from db.reads.variant_files import VariantFiles
from jobs.errors import JobFileError
from jobs.exporters import stage_of
from jobs.job_file.job_checks import job_problem
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.stages.base import Model
from jobs.toolchain_table import TOOLCHAINS
from jobs.toolchains import Toolchain
from orchestrator.artifacts import variant_layout
from orchestrator.imports.variant_names import parse_variant_name
from orchestrator.submission.job_file import load
from workers.llm.models.model_source import load_model
from workers.llm.shark import shark_model
from workers.llm.shark.shark_program import entry_points, flags, most_tokens, pages_of, timed

TINY = Model("tiny-llama", "tiny-llama", "digest", 1)
TOOLCHAIN = Toolchain("default", {})
#: As sharktank 3.8 tells it of the shipped model in a pipeline of two.
SERVICE = {"paged_kv_cache": {"kv_cache_dtype": "float32", "paged_kv_block_size_elements_per_device": [8192, 8192]}}
LLAMA_31 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PIPELINE = {"exporter": "sharktank", "pp": [1, 2]}


def planned(variants: dict[str, Any], **more: Any) -> Plan:
    return plan(JobSpec.model_validate({"name": "x", "model": "tiny-llama", "variants": variants, **more}), TINY)


def argv_of(made: Plan, stage: str, pp: int) -> tuple[str, ...]:
    task = next(task for task in made.tasks if task.stage == stage and task.variants[0].pp == pp)
    return stage_of(stage, task.settings).commands(task.settings, TOOLCHAIN)[0].argv


def test_a_pipeline_is_in_the_variants_name_and_takes_a_device_for_each_of_its_stages() -> None:
    made = planned(PIPELINE)
    assert [variant.name for variant in made.variants] == [
        "tiny-llama-FP16-paged-TP1-sharktank",
        "tiny-llama-FP16-paged-TP1-PP2-sharktank",
    ]
    numerics = [task for task in made.tasks if task.stage == "numerics"]
    assert [task.resources.devices for task in numerics] == [1, 2]
    assert argv_of(made, "compile", 2).count("--iree-hal-target-device=local[1]") == 1
    assert argv_of(made, "numerics", 2).count("--device=local-task") == 2


def test_settings_of_one_stage_are_what_they_were_before_there_were_pipelines() -> None:
    made = planned({"exporter": ["haloctl", "sharktank"]})
    assert not [task for task in made.tasks if "pp" in task.settings]


def test_a_name_with_a_pipeline_is_read_as_it_is_written() -> None:
    (variant,) = planned({"exporter": "sharktank", "pp": 4}).variants
    model, parsed = parse_variant_name(variant.name, "cpu")
    assert (model, parsed.name, parsed.pp, parsed.device_count) == ("tiny-llama", variant.name, 4, 4)


@pytest.mark.parametrize(
    ("variants", "says"),
    [
        ("{pp: 2}", "the exporter haloctl makes no pipeline: it splits every layer over all devices (tp)"),
        ("{engine: torch, pp: 2}", "the engine torch makes no pipeline"),
        ("{exporter: sharktank, tp: 2}", "use a pipeline (pp)"),
    ],
)
def test_what_cannot_be_split_so_is_refused_with_what_can(tmp_path: Path, variants: str, says: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\nmodel: tiny-llama\nvariants: {variants}\n")
    with pytest.raises(JobFileError, match=re.escape(says)):
        load(str(job))


def test_each_device_is_for_what_runs_on_one() -> None:
    spec = JobSpec.model_validate(
        {"name": "x", "model": "tiny-llama", "variants": PIPELINE, "benchmark": {"on": "each_device"}}
    )
    assert "tp 1 with pp 2 takes 2: use each_node" in str(job_problem(spec, TOOLCHAINS))


def test_a_benchmark_takes_its_inputs_from_what_export_wrote() -> None:
    made = planned(PIPELINE)
    argv = argv_of(made, "benchmark", 2)
    assert argv.count("--device=local-task") == 2
    assert {"--parameters=model=inputs/export/model.irpa", "--flagfile=inputs/export/prefill_bs1_t64.flags"} < set(argv)


def test_sharktanks_own_options_are_passed_on_and_batches_of_prefill_and_decode_may_differ() -> None:
    options = {"attention_dtype": "float32", "attention_kernel": "sharktank", "bs_decode": [1, 8]}
    made = planned(PIPELINE, sharktank=options)
    argv = argv_of(made, "export", 1)
    assert {"--attention-dtype=float32", "--attention-kernel=sharktank"} < set(argv)
    assert argv[argv.index("--bs-prefill") :] == ("--bs-prefill", "1", "--bs-decode", "1", "8", "--cache-length=96")
    task = next(task for task in made.tasks if task.stage == "benchmark")
    stage = stage_of("benchmark", task.settings)
    commands = stage.commands(task.settings, TOOLCHAIN)
    timed = [command.argv[-1] for command in commands]
    names = ["prefill_bs1_t64", "decode_bs1_t64", "decode_bs8_t64", "generation_bs1_t64"]
    assert [word.rpartition("/")[2] for word in timed] == [f"{name}.json" for name in names]
    assert stage.count_commands(task.settings) == len(timed)
    entries = list(entry_points([1], [1, 8], [64], pages_of(SERVICE, 8, 96)))
    assert [entry["name"] for entry in entries] == ["prefill_bs1", "decode_bs1", "decode_bs8"]


@pytest.mark.parametrize(
    ("variants", "options", "says"),
    [
        ({}, {"attention_dtype": "float32"}, "is an option of the exporter sharktank, and no variant has it"),
        (PIPELINE, {"bs_prefill": 2, "bs_decode": 8}, "need a batch size that both have"),
    ],
)
def test_options_of_sharktank_without_a_meaning_are_refused(
    variants: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    spec = JobSpec.model_validate({"name": "x", "model": "tiny-llama", "variants": variants, "sharktank": options})
    assert says in str(job_problem(spec, TOOLCHAINS))


def test_times_of_a_pipeline_on_gpus_say_what_is_in_them(tmp_path: Path) -> None:
    variants = {**PIPELINE, "target": ["cpu", "mi300x"]}
    has_warnings = {}
    for task in planned(variants, benchmark={"generations": 0}).tasks:
        if task.stage == "benchmark":
            stage, settings = stage_of("benchmark", task.settings), {**task.settings, "batch": []}
            outcome = stage.parse(settings, tmp_path)
            has_warnings[task.variants[0].target, task.variants[0].pp] = bool(outcome.warnings)
    assert has_warnings == {("cpu", 1): False, ("cpu", 2): False, ("mi300x", 1): False, ("mi300x", 2): True}


def test_rows_have_pages_of_their_own_on_every_device() -> None:
    pages = pages_of(SERVICE, batch=2, cache_length=96)
    assert flags(timed("decode", 2, 64, pages)).splitlines() == [
        "--function=decode_bs2",
        "--input=2x1xi64=5",
        "--input=2xi64=65",
        "--input=2xi64=64",
        "--input=2x5xi64=1,2,3,4,5,7,8,9,10,11",
        "--input=13x8192xf32=0",
        "--input=13x8192xf32=0",
    ]
    assert flags(timed("prefill", 1, 40, pages)).splitlines()[1:4] == [
        "--input=1x48xi64=5",  # whole pages
        "--input=1xi64=40",
        "--input=1x3xi64=1,2,3",
    ]
    assert "--input=1x2xi64=1,2" in flags(timed("prefill", 1, 5, pages))  # never fewer than two
    assert most_tokens(1024) == 1008


def test_a_variants_folder_calls_one_function_with_prompts_of_each_length() -> None:
    pages = pages_of(SERVICE, batch=1, cache_length=160)
    config = {
        "devices": 2,
        "prompt_tokens": [64, 128],
        "parameter_scope": "model",
        "parameter_files": ["model.irpa"],
        "entry_points": list(entry_points([1], [1], [128, 64], pages)),
        "pages": pages,
    }
    names = [call.name for call in variant_layout.calls(config)]
    assert names == ["prefill_bs1_t64", "prefill_bs1_t128", "decode_bs1"]
    functions = [
        next(word for word in argv if "--function" in word) for argv in variant_layout.commands(config, "cpu", Path())
    ]
    assert functions == ["--function=prefill_bs1", "--function=prefill_bs1", "--function=decode_bs1"]
    script = variant_layout.script(VariantFiles("v", "cpu", "j", "e", "c", "", {}, ()), config, "/bin")
    assert "prefill_bs1_t64) echo '--function=prefill_bs1 --input=1x64xi64=5 " in script
    assert "for device in ${DEVICES:-local-task local-task}" in script


@pytest.mark.parametrize(
    ("overrides", "pp", "tokens", "says"),
    [
        ({}, 4, 1008, None),
        ({}, 5, 96, "a pipeline of 5 stages needs as many layers, and there are 4"),
        ({}, 1, 1009, "prompt and new tokens are 1009, and sharktank's programs hold 1008 a row"),
        ({"attention_bias": True}, 1, 96, "no biases"),
        ({"tie_word_embeddings": True}, 1, 96, "no output that is tied to the embeddings"),
    ],
)
def test_what_sharktank_does_not_import_is_said_beforehand(
    overrides: dict[str, Any], pp: int, tokens: int, says: str | None
) -> None:
    reasons = [reason for _, reason in shark_model.problems(load_model("tiny-llama", None, overrides), pp, tokens)]
    assert len(reasons) == bool(says)
    assert (says or "") in "".join(reasons)


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        ({}, None),
        ({**LLAMA_31, "original_max_position_embeddings": 8192}, "(llama3: factor 8, high_freq_factor 4, low_freq"),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, "(linear: factor 2)"),
    ],
)
def test_sharktank_is_given_the_models_rope_base_and_what_it_leaves_out_is_said(
    scaling: dict[str, Any], says: str | None
) -> None:
    model = load_model("tiny-llama", None, {"rope_parameters": scaling} if scaling else {})
    imported = {"general.architecture": "llama", "llama.block_count": 4, "llama.rope.freq_base": 1.0}
    assert shark_model.with_rope(imported, model) == {
        **imported,
        "llama.rope.freq_base": scaling.get("rope_theta", 10000.0),
    }
    warnings = shark_model.rope_warnings(model)
    assert len(warnings) == bool(says)
    assert (says or "") in "".join(warnings)


def test_a_warning_of_the_export_stands_in_its_cell(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "export.json").write_text('{"trace_s": 1.5, "warnings": ["something differs"]}')
    task = planned({"exporter": "sharktank"}).tasks[0]
    outcome = stage_of("export", task.settings).parse(task.settings, tmp_path)
    assert outcome.warnings == ("something differs",)
    assert [each.metric for each in outcome.measurements] == ["trace_s"]
