"""Benchmark of vLLM: whole generations of a batch, timed step by step in the loop of its own engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.process_order import report_name
from jobs.stages.base import (
    OUTPUTS,
    Cell,
    Observed,
    Settings,
    Stage,
    device_resources,
    latency_figure,
    memory_for,
    model_flags,
    model_settings,
    needs_exclusive_node,
    program,
)
from jobs.stages.benchmark import sampling_settings
from jobs.stages.generation_metrics import Generation, generation_measurements
from jobs.stages.torch_benchmark import (
    TimedWorkload,
    count_commands,
    latency_measurements,
    ordered_workloads,
    read_reports,
    workloads,
)
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain


def settings(cell: Cell) -> dict[str, Any]:
    """Return the model, its workloads, and how often they are repeated."""
    variant, workload = cell.variant, cell.spec.workload
    return {
        "engine": variant.engine,
        "model": model_settings(cell),
        "precision": variant.precision.value,
        "target": variant.target,
        "tp": variant.tp,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        **sampling_settings(cell),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return a program for each process; its first repetitions are warm-up."""
    return [
        program(
            "vllm_benchmark",
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--tp={settings['tp']}",
            f"--batch={workload.batch}",
            f"--prompt-tokens={workload.prompt_tokens}",
            f"--new-tokens={settings['new_tokens']}",
            f"--repetitions={settings['warmup'] + settings['repetitions']}",
            f"--report={OUTPUTS}/{report_name(workload.name, process)}",
        )
        for workload, process in ordered_workloads(settings)
    ]


def resources(cell: Cell) -> Resources:
    """Return the variant's devices, with a second core for vLLM's scheduler."""
    return device_resources(cell, cpus=2, memory_bytes=memory_for(cell, 4), is_exclusive=needs_exclusive_node(cell))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return latencies and rates of each workload, and load time."""
    measurements: list[Measurement] = []
    load_times_s: list[float] = []
    warmup = settings["warmup"]
    for workload in workloads(settings):
        reports = read_reports(settings, workload.name, folder)
        load_times_s += [float(report["load_s"]) for report in reports]
        processes = [[Generation(**generation) for generation in report["generations"]] for report in reports]
        context = {**workload._asdict(), "new_tokens": settings["new_tokens"], "vllm": reports[0]["vllm"]}
        measurements += latency_measurements(processes, warmup, context)
        measurements += generation_measurements([generations[warmup:] for generations in processes], context)
    return Outcome((Measurement("load_s", tuple(load_times_s)), *measurements))


def observe(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """Yield the memory of the largest process of each workload, which includes what vLLM takes for its cache."""
    peaks_bytes: dict[TimedWorkload, int] = {}
    for (workload, _), (process, _) in zip(ordered_workloads(settings), observed, strict=True):
        peaks_bytes[workload] = max(peaks_bytes.get(workload, 0), process.peak_rss_bytes)
    for workload, peak_bytes in peaks_bytes.items():
        yield Measurement("host_memory_bytes", (float(peak_bytes),), workload._asdict())


VLLM_BENCHMARK = Stage(
    name="benchmark",
    title="benchmark",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={".json": "report"},
    is_measured=True,
    needs_weights=True,
    observe=observe,
    count_commands=count_commands,
    figure=latency_figure,
)
