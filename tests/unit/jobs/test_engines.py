"""Two engines in one job: the plan of each, and the results of the one with several ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from db.reads.matrix import COLUMNS, CellRow, MatrixRow
from jobs.digest import task_digest
from jobs.engines import ENGINES
from jobs.exporters import stage_of
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.stages import STAGES
from jobs.state import TaskState
from jobs.task import Measurement
from jobs.toolchains import Toolchain
from jobs.variants import Attention, Axes, Precision
from orchestrator.views.matrix_view import to_table
from tests.stored_jobs import TINY
from workers.llm.command_line import BadInput
from workers.llm.torch_ranks.network_interfaces import interface_towards
from workers.llm.torch_ranks.ranks import GangNode, ranks_of, this_node

BOTH: dict[str, Any] = {"engine": ["iree", "torch"], "tp": [1, 8], "nodes": [1, 2]}
SINGLE_NODE = [{"engine": "iree", "nodes": 2}, {"tp": 1, "nodes": 2}]
TOOLCHAIN = Toolchain("default", {})


def planned(**variants: Any) -> Plan:
    return plan(JobSpec.model_validate({"name": "x", "model": "tiny-llama", "variants": variants}), TINY)


def test_both_engines_stand_side_by_side() -> None:
    made = planned(**BOTH, exclude=SINGLE_NODE)
    assert [variant.name for variant in made.variants] == [
        "tiny-llama-FP16-TP1",
        "tiny-llama-FP16-TP1-torch",
        "tiny-llama-FP16-TP8",
        "tiny-llama-FP16-TP8-torch",
        "tiny-llama-FP16-TP8-2N-torch",
    ]


def test_an_engine_is_planned_the_stages_that_it_does() -> None:
    made = planned(engine=list(ENGINES))
    by_engine = {
        engine: {task.stage for task in made.tasks if any(variant.engine == engine for variant in task.variants)}
        for engine in ENGINES
    }
    asked_for = {name for name, stage in STAGES.items() if stage.is_default} - {"finetune", "quantize"}
    assert by_engine == {name: asked_for & engine.stages.keys() for name, engine in ENGINES.items()}
    of_torch = [task for task in made.tasks if task.variants[0].engine == "torch"]
    assert not any(task.needs for task in of_torch)


def test_ranks_are_spread_over_nodes_and_hold_a_device_each() -> None:
    made = planned(tp=8, engine="torch", nodes=[1, 2], target=["cpu", "mi300x"])
    held = {(task.resources.nodes, task.resources.devices) for task in made.tasks}
    assert held == {(1, 8), (2, 4)}
    gpu = next(task for task in made.tasks if task.settings["target"] == "mi300x")
    assert "--device=cuda" in stage_of(gpu.stage, gpu.settings).commands(gpu.settings, TOOLCHAIN)[0].argv


def test_the_engine_and_its_nodes_are_part_of_what_a_task_is() -> None:
    made = planned(tp=8, engine=["iree", "torch"], nodes=[1, 2], exclude=[{"engine": "iree", "nodes": 2}])
    digests = {
        task_digest(stage_of(task.stage, task.settings), task.settings, TOOLCHAIN, {})
        for task in made.tasks
        if task.stage == "benchmark"
    }
    assert len(digests) == len(made.variants) == 3


def test_a_step_of_several_ranks_is_as_slow_as_its_last(tmp_path: Path) -> None:
    settings = {"engine": "torch", "batch": [2], "prompt_tokens": [16], "warmup": 1, "repetitions": 2}
    ranks = [
        {
            "rank": rank,
            "host": "a",
            "device": "cpu",
            "load_s": 1.0 + rank,
            "host_memory_bytes": 100,
            "device_memory_bytes": 0,
            "times": [{"ttft_ms": times, "steps_ms": [[time, time] for time in times]}],
        }
        for rank, times in enumerate(([9.0, 2.0, 4.0], [8.0, 3.0, 1.0]))
    ]
    workload = {"batch": 2, "prompt_tokens": 16, "new_tokens": 8}
    report = {"backend": "gloo", "threads_per_rank": 1, "workloads": [workload], "ranks": ranks}
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "benchmark_bs2_t16.json").write_text(json.dumps(report))
    outcome = stage_of("benchmark", settings).parse(settings, tmp_path)
    measurements = {measurement.metric: measurement for measurement in outcome.measurements}
    assert measurements["ttft_ms"].samples == (3.0, 4.0)
    assert measurements["ttft_ms"].context["warmup_ms"] == [9.0]
    assert measurements["itl_ms"].samples == (3.0, 4.0)
    assert measurements["e2e_ms"].samples == (9.0, 12.0)
    assert [rank["samples"] for rank in measurements["ttft_ms"].context["ranks"]] == [[2.0, 4.0], [3.0, 1.0]]
    assert measurements["prefill_tokens_per_s"].samples == (32 / 3e-3, 32 / 4e-3)
    assert measurements["decode_tokens_per_s"].samples == (2 / 3e-3, 2 / 4e-3)
    assert measurements["load_s"] == Measurement("load_s", (2.0,))
    assert measurements["host_memory_bytes"].samples == (200.0,)
    assert "device_memory_bytes" not in measurements


def test_what_an_engine_does_not_do_is_a_dash() -> None:
    cell = CellRow("j", "j-01", TaskState.SUCCEEDED, None, None, False, None, None, (), None, ())
    how = Axes(precision=Precision.FP8, attention=Attention.SDPA, tp=1).axes
    rows = [
        MatrixRow("tiny", "TP1", "cpu", dict.fromkeys(COLUMNS, cell), **how),
        MatrixRow("tiny", "TP1-torch", "cpu", {"numerics": cell}, **{**how, "engine": "torch"}),
    ]
    dash = "\N{EN DASH}"  # a program whose cache is not paged is neither evaluated nor served
    assert to_table(rows).rows == (
        ("TP1", "cpu", dash, "PASS", "PASS", "PASS", "PASS", "PASS", "PASS", dash, dash, "PASS", "PASS", dash),
        ("TP1-torch", "cpu", dash, dash, dash, dash, dash, dash, "PASS", dash, dash, "", dash, dash),
    )


def test_a_nodes_ranks_are_an_even_part_of_all() -> None:
    environment = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "29500"}
    node = this_node(environment)
    assert node == GangNode(1, 2, "10.0.0.1", 29500)
    assert [(rank.number, rank.local) for rank in ranks_of(node, 8, "cpu")] == [(4, 0), (5, 1), (6, 2), (7, 3)]
    assert str(ranks_of(GangNode(), 2, "cuda")[1].torch_device) == "cuda:1"
    with pytest.raises(BadInput, match="even part of 7"):
        ranks_of(node, 7, "cpu")
    with pytest.raises(BadInput, match="PET_MASTER_ADDR"):
        this_node({name: value for name, value in environment.items() if name != "PET_MASTER_ADDR"})


def test_ranks_on_loopback_stay_there() -> None:
    assert interface_towards("127.0.0.1") == "lo"
