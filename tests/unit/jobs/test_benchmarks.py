"""The processes of a benchmark, their order, and the results parsed from all of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.exporters import stage_of
from jobs.job_file.job_checks import installation_problem
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.problems import Problem
from jobs.process_order import ProcessOrder, order_processes
from jobs.stages.generation_metrics import Generation, generation_measurements
from jobs.task import Device, Measurement, Node, Pin, Process
from jobs.toolchain_table import TOOLCHAINS
from jobs.toolchains import Toolchain
from tests.stored_jobs import TINY

TOOLCHAIN = Toolchain("default", {})
TIMED: dict[str, Any] = {"target": "cpu", "tp": 1, "batch": [2], "prompt_tokens": [8], "new_tokens": 3}
TWICE: dict[str, Any] = {**TIMED, "warmup": 1, "repetitions": 2, "generations": 1, "processes": 2}
NODE = Node("a", "", 8, 1 << 36, tuple(Device("h200", index) for index in range(2)))


def planned(nodes: tuple[Node, ...] = (), **keys: Any) -> Plan:
    return plan(JobSpec.model_validate({"name": "x", "model": "tiny-llama", **keys}), TINY, nodes)


def test_processes_run_in_the_order_that_the_job_asks_for() -> None:
    assert order_processes("abc", 2, ProcessOrder.SEQUENTIAL) == [
        (process, number) for process in "abc" for number in (0, 1)
    ]
    assert order_processes("abc", 2, ProcessOrder.INTERLEAVED) == [
        (process, number) for number in (0, 1) for process in "abc"
    ]
    shuffled = order_processes("abc", 20, ProcessOrder.SHUFFLED)
    assert sorted(shuffled) == order_processes("abc", 20, ProcessOrder.SEQUENTIAL) != shuffled
    assert shuffled == order_processes("abc", 20, ProcessOrder.SHUFFLED)


def test_each_process_is_a_command_that_leaves_a_report_of_its_own() -> None:
    commands = stage_of("benchmark", TWICE).commands({**TWICE, "order": "interleaved"}, TOOLCHAIN)
    reports = [argument.partition("outputs/")[2] for command in commands for argument in command.argv[-1:]]
    names = ["prefill_bs2_t8", "decode_bs2_t8", "generation_bs2_t8"]
    assert reports == [f"{name}{end}" for end in (".json", ".1.json") for name in names]


def test_samples_of_all_processes_are_kept_with_how_many_each_gave(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    for process, end in enumerate((".json", ".1.json")):
        times = [100.0, 2.0 + process, 4.0 + process]
        runs = [{"run_type": "iteration", "real_time": time, "time_unit": "ms"} for time in times]
        generation = {"ttft_ms": 10.0 * (1 + process), "steps_ms": [1.0, 3.0]}
        reports = {
            "prefill_bs2_t8": {"benchmarks": runs},
            "decode_bs2_t8": {"benchmarks": runs},
            "generation_bs2_t8": {"generations": [{"ttft_ms": 99.0, "steps_ms": [99.0, 99.0]}, generation]},
        }
        for name, report in reports.items():
            (tmp_path / "outputs" / f"{name}{end}").write_text(json.dumps(report))
    measurements = {
        measurement.metric: measurement
        for measurement in stage_of("benchmark", TWICE).parse(TWICE, tmp_path).measurements
    }
    assert (measurements["itl_ms"].samples, measurements["itl_ms"].context["groups"]) == ((2.0, 4.0, 3.0, 5.0), [2, 2])
    assert measurements["itl_ms"].context["warmup_ms"] == [100.0, 100.0]
    assert (measurements["e2e_ms"].samples, measurements["e2e_ms"].context["groups"]) == ((14.0, 24.0), [1, 1])
    assert measurements["output_tokens_per_s"].samples == (6 / 14e-3, 6 / 24e-3)
    # so that all engines have the same workloads
    assert {measurement.context["new_tokens"] for measurement in measurements.values()} == {3}


def test_a_whole_generation_is_told_by_its_mean_its_median_and_its_slowest_steps() -> None:
    steps = [1.0] * 98 + [2.0, 50.0]
    samples = {
        measurement.metric: measurement.samples
        for measurement in generation_measurements([[Generation(5.0, steps)]], {"batch": 1})
    }
    assert samples == {
        "generation_ttft_ms": (5.0,),
        "e2e_ms": (155.0,),
        "output_tokens_per_s": (101 / 0.155,),
        "itl_mean_ms": (1.5,),
        "itl_p50_ms": (1.0,),
        "itl_p99_ms": pytest.approx((2.48,)),
    }
    single = [measurement.metric for measurement in generation_measurements([[Generation(5.0, ())]], {"batch": 1})]
    assert single == ["generation_ttft_ms", "e2e_ms", "output_tokens_per_s"]


def test_vllms_generations_are_read_like_all_others(tmp_path: Path) -> None:
    settings = {**TIMED, "engine": "vllm", "warmup": 1, "repetitions": 1}
    generations = [{"ttft_ms": 22.0, "steps_ms": [6.0, 2.0]}, {"ttft_ms": 2.0, "steps_ms": [1.0, 3.0]}]
    (tmp_path / "outputs").mkdir()
    report = {"load_s": 40.0, "vllm": "0.32.0", "generations": generations}
    (tmp_path / "outputs" / "benchmark_bs2_t8.json").write_text(json.dumps(report))
    outcome = stage_of("benchmark", settings).parse(settings, tmp_path)
    measurements = {measurement.metric: measurement for measurement in outcome.measurements}
    assert [measurements[metric].samples for metric in ("ttft_ms", "itl_ms", "e2e_ms")] == [(2.0,), (2.0,), (6.0,)]
    (memory,) = stage_of("benchmark", settings).observe(settings, [(Process(("python",), 0, 1.0, 1 << 30), "")])
    assert memory == Measurement("host_memory_bytes", (float(1 << 30),), {"batch": 2, "prompt_tokens": 8})
    assert (measurements["itl_ms"].context["vllm"], measurements["load_s"]) == (
        "0.32.0",
        Measurement("load_s", (40.0,)),
    )


def test_engines_are_measured_on_one_and_the_same_device() -> None:
    engines = ["iree", "torch", "torch-compile"]
    made = planned((NODE,), variants={"engine": engines, "target": "h200"}, benchmark={"on": "one_place"})
    timed = [task for task in made.tasks if task.stage == "benchmark"]
    assert [task.pin for task in timed] == [Pin("a", (0,))] * 3
    wide = planned((NODE,), variants={"tp": 2, "target": "h200"}, benchmark={"on": "one_place"})
    assert wide.tasks[-1].pin == Pin("a", (0, 1))


def test_torchs_options_reach_its_program_and_are_part_of_what_a_task_is() -> None:
    options = {"compile_mode": "max-autotune", "inductor": {"freezing": True}, "tunable_op": True, "tunable_op_ms": 30}
    engines = {"engine": ["torch", "torch-compile"], "target": ["cpu", "h200"], "attention": "sdpa"}
    made = planned(variants=engines, stages=["benchmark"], torch=options)
    commands = {
        (task.settings["engine"], task.settings["target"]): stage_of("benchmark", task.settings).commands(
            task.settings, TOOLCHAIN
        )[0]
        for task in made.tasks
    }
    compiled = commands["torch-compile", "h200"]
    assert {"--compile=max-autotune", "--inductor=freezing=true"} <= set(compiled.argv)
    assert compiled.env["PYTORCH_TUNABLEOP_ENABLED"] == "1"
    assert compiled.env["PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS"] == "30"
    assert not any(argument.startswith("--compile") for argument in commands["torch", "h200"].argv)
    assert "PYTORCH_TUNABLEOP_ENABLED" not in commands["torch-compile", "cpu"].env
    assert made.tasks[0].key != planned(variants=engines, stages=["benchmark"]).tasks[2].key


def test_vllm_is_refused_where_it_is_not_and_taken_from_a_toolchain_that_has_it() -> None:
    def problem(versions: dict[str, str], **variants: Any) -> Problem | None:
        asked = {"engine": ["iree", "vllm"], **variants}
        spec = JobSpec.model_validate({"name": "x", "model": "m", "variants": asked})
        return installation_problem(spec, versions, TOOLCHAINS)

    assert "toolchain: vllm" in str(problem({"torch": "2.13.0"}))
    assert problem({"vllm": "0.32.0"}) is None
    assert problem({}, engine="vllm", toolchain="vllm") is None
    made = planned(variants={"engine": "vllm", "toolchain": "vllm"}, stages=["benchmark"])
    assert [(task.stage, task.toolchain) for task in made.tasks] == [("benchmark", "vllm")]
