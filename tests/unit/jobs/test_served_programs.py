"""What export and compile are asked for where a server will run the program."""

from typing import Any

import pytest

from jobs.contexts import context_for, serving_contexts, workload_contexts
from jobs.exporters import stage_of
from jobs.job_file.job_checks import job_problem
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.toolchain_table import TOOLCHAINS
from jobs.toolchains import Toolchain
from tests.stored_jobs import TINY

STAGES = ["export", "compile", "serve"]
SERVED: dict[str, Any] = {
    "name": "x",
    "model": "tiny-llama",
    "stages": STAGES,
    "workload": {"batch": 2, "prompt_tokens": [64, 128], "new_tokens": 32},
    "serve": {"decode_batch": [8, 1], "prefill_batch": 2, "kv_pool_blocks": 90},
}


def planned(**keys: Any) -> Plan:
    return plan(JobSpec.model_validate({**SERVED, **keys}), TINY)


def test_a_context_is_whole_blocks_and_those_of_a_server_double() -> None:
    assert (context_for(33), context_for(33, 32), context_for(48)) == (48, 64, 48)
    assert workload_contexts([64, 2016], 2048) == [96, 2048]
    assert serving_contexts(2048, 16) == [64, 128, 256, 512, 1024, 2048]
    assert serving_contexts(300, 16) == [64, 128, 304]
    assert serving_contexts(40, 32) == [64]


def test_a_served_program_is_exported_with_what_its_server_calls() -> None:
    made = planned(variants={"kv_cache": ["contiguous", "paged"]})
    exports = [task for task in made.tasks if task.stage == "export"]
    flags = {"--decode-batch", "--prefill-batch", "--chunk-tokens=128", "--kv-pool-blocks=90", "--block-tokens=16"}
    argvs = [" ".join(stage_argv(task)) for task in exports]
    assert [sum(flag in argv for flag in flags) for argv in argvs] == [0, len(flags)]
    assert "--decode-batch 1 8 --prefill-batch 2" in argvs[1]
    compiles = [task.settings for task in made.tasks if task.stage == "compile"]
    assert [settings["decode_rows"] for settings in compiles] == [2, 8]
    assert [settings.get("extend_rows") for settings in compiles] == [None, 256]


def stage_argv(task: Any) -> list[str]:
    (command,) = stage_of(task.stage, task.settings).commands(task.settings, Toolchain("default", {}))
    return list(command.argv)


@pytest.mark.parametrize(("blocks", "is_enough"), [(20, False), (21, True)])
def test_a_pool_holds_the_rows_of_the_workload(blocks: int, is_enough: bool) -> None:
    keys = {"variants": {"kv_cache": "paged"}, "serve": {"kv_pool_blocks": blocks}}
    problem = job_problem(JobSpec.model_validate({**SERVED, **keys}), TOOLCHAINS)
    assert (problem is None) is is_enough
    assert is_enough or "needs 21 blocks" in str(problem)
