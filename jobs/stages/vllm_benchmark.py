"""Benchmark of vLLM: whole generations of a batch, timed step by step in its own engine's loop."""

import json
from pathlib import Path
from typing import Any

from jobs.benchmarks import Generation, file_name, measurements_of
from jobs.stages.base import (
    OUTPUTS,
    Cell,
    Settings,
    Stage,
    memory_for,
    model_flags,
    model_settings,
    on_devices,
    program,
    wants_quiet,
)
from jobs.stages.benchmark import how_often
from jobs.stages.torch_benchmark import runs, times_of, workloads
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain


def settings(cell: Cell) -> dict[str, Any]:
    """The model, its workloads, and how often they are repeated."""
    variant, workload = cell.variant, cell.spec.workload
    return {
        "engine": variant.engine.value,
        "model": model_settings(cell.model),
        "precision": variant.precision.value,
        "target": variant.target,
        "tp": variant.tp,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        **how_often(cell),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Each a fresh program; warm-up repetitions come first and are told apart when they are read."""
    return [
        program(
            "vllm_benchmark",
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--tp={settings['tp']}",
            f"--batch={one.batch}",
            f"--prompt-tokens={one.prompt_tokens}",
            f"--new-tokens={settings['new_tokens']}",
            f"--repetitions={settings['warmup'] + settings['repetitions']}",
            f"--report={OUTPUTS}/{file_name(one.name, process)}",
        )
        for one, process in runs(settings)
    ]


def resources(cell: Cell) -> Resources:
    """The variant's devices; vLLM takes a core of its own for its scheduler."""
    return on_devices(cell, cpus=2, memory_bytes=memory_for(cell, 4), is_quiet=wants_quiet(cell))


def parse(settings: Settings, folder: Path) -> Outcome:
    """TTFT, ITL and whole generations of each workload, and load time."""
    measurements: list[Measurement] = []
    loads_s: list[float] = []
    warmup = settings["warmup"]
    for one in workloads(settings):
        names = [file_name(one.name, process) for process in range(settings.get("processes", 1))]
        reports = [json.loads((folder / OUTPUTS / name).read_text()) for name in names]
        loads_s += [float(found["load_s"]) for found in reports]
        every = [[Generation(**generation) for generation in found["generations"]] for found in reports]
        about = {"batch": one.batch, "prompt_tokens": one.prompt_tokens, "new_tokens": settings["new_tokens"]}
        how = {"vllm": reports[0]["vllm"]}
        measurements += times_of(every, warmup, {**about, **how})
        measurements += measurements_of([of_process[warmup:] for of_process in every], {**about, **how})
    return Outcome((Measurement("load_s", tuple(loads_s)), *measurements))


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
)
