"""Profile: how long each kernel of a compiled program takes, in a process of its own, beside the least it can take."""

import json
from pathlib import Path
from typing import Any

from jobs.stages import analyse, benchmark
from jobs.stages.base import (
    INPUTS,
    Cell,
    Medians,
    Settings,
    Stage,
    device_count,
    device_resources,
    memory_for,
    needs_exclusive_node,
    parallelism_settings,
    program,
    read_report,
)
from jobs.targets import TARGETS, device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import KvCache

REPORT, TEXT = "profile.json", "profile.txt"
CALLS = 20  #: of each entry point
#: What tells the time of kernels, by what hides a node's other devices from an attempt.
COLLECTORS = {(): "ireeprof", ("HIP_VISIBLE_DEVICES",): "rocprofv3", ("CUDA_VISIBLE_DEVICES",): "nsys"}
FACTS = ("kernels_ms", "outside_ms")


def settings(cell: Cell) -> dict[str, Any]:
    """Return the workload, which says what is called, and the collector."""
    workload, target = cell.spec.workload, cell.variant.target
    return {
        "target": target,
        **parallelism_settings(cell.variant),
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        "max_disturbed_reruns": cell.spec.benchmark.max_disturbed_reruns,
        "collector": COLLECTORS[TARGETS[target].visible_devices],
        **benchmark.runtime_settings(cell),
        **({"kv_block_tokens": workload.kv_block_tokens} if cell.variant.kv_cache is KvCache.PAGED else {}),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the program; it runs iree-benchmark-module in processes of its own."""
    calls = benchmark.timed_calls(settings)
    entries = {call.function: [f"--input={text}" for text in call.inputs] for call in calls}
    return [
        program(
            "profile",
            f"--kernels={INPUTS}/analyse/{analyse.REPORT}",
            f"--collector={settings['collector']}",
            f"--calls={CALLS}",
            *(f"--entry={json.dumps({'function': name, 'flags': flags})}" for name, flags in entries.items()),
            "--",
            f"--module={INPUTS}/compile/model.vmfb",
            *device_flags(settings["target"], device_count(settings)),
            *settings.get("flags", ()),
            *(f"--parameters=model={INPUTS}/export/model.rank{rank}.irpa" for rank in range(settings["tp"])),
        )
    ]


def resources(cell: Cell) -> Resources:
    """Return what a benchmark takes."""
    return device_resources(cell, memory_bytes=memory_for(cell, 4), is_exclusive=needs_exclusive_node(cell))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return the time within kernels and outside of them, of each entry point that a benchmark times."""
    report = read_report(folder, REPORT)
    measurements = []
    for call in benchmark.timed_calls(settings):
        entry = report["entries"][call.function]
        context = {
            "function": call.function,
            "batch": call.batch,
            "prompt_tokens": call.prompt_tokens,
            "collector": report["collector"],
        }
        kind = analyse.KINDS[call.metric]
        measurements += [Measurement(f"{kind}_{fact}", (float(entry[fact]),), context) for fact in FACTS]
    return Outcome(tuple(measurements))


def figure(medians: Medians, target: str) -> str:
    """Return the times of prefill and decode within kernels."""
    names = [f"{kind}_kernels_ms" for kind in ("prefill", "decode")]
    if not {*names} <= medians.keys():
        return ""
    return f"{'+'.join(f'{medians[name]:.3g}' for name in names)} ms in kernels"


PROFILE = Stage(
    name="profile",
    title="profile",
    needs=("export", "compile", "analyse"),
    optional_needs=("benchmark",),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={REPORT: "report", TEXT: "report", ".ireeprof": "profile", ".nsys-rep": "profile"},
    is_default=False,
    is_measured=True,
    needs_weights=True,
    figure=figure,
)
