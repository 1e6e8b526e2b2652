"""The SHARK route in plans: what a pipeline of devices is called, takes and is refused for."""

import re
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobFileError
from jobs.plan import Plan, each_problem, plan
from jobs.spec import JobSpec
from jobs.stages import stage_of
from jobs.stages.base import Model
from jobs.toolchains import Toolchain
from orchestrator.imports.names import variant_called
from orchestrator.job_file import load

TINY = Model("tiny-llama", "tiny-llama", "digest", 1)
TOOLCHAIN = Toolchain("default", {})
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
    model, found = variant_called(variant.name, "cpu")
    assert (model, found.name, found.pp, found.device_count) == ("tiny-llama", variant.name, 4, 4)


@pytest.mark.parametrize(
    ("variants", "says"),
    [
        ("{pp: 2}", "the exporter haloctl makes no pipeline: it splits every layer over all devices (tp)"),
        ("{engine: torch, pp: 2}", "the engine torch makes no pipeline"),
        ("{exporter: sharktank, tp: 2}", "what it has is a pipeline (pp)"),
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
    assert "tp 1 with pp 2 takes 2 of them" in (each_problem(spec) or "")
