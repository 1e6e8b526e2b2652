"""Analyse: what the kernels of a compiled program must cost and what they take, without a device."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.metrics import KERNEL_FACTS
from jobs.number_format import format_number
from jobs.peaks import PEAKS
from jobs.stages import benchmark
from jobs.stages.base import INPUTS, Cell, Medians, Settings, Stage, parallelism_settings, program, read_report
from jobs.stages.compile import DUMP_ARCHIVE
from jobs.targets import TARGETS
from jobs.task import GIB, Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import KvCache

REPORT, TEXT = "kernels.json", "kernels.txt"
OF_SIZES = frozenset({"floor_ms", "flops", "bytes"})  #: they are not known where a kernel's sizes are not
KINDS = {"ttft_ms": "prefill", "itl_ms": "decode"}  #: by the metric that times the entry point


def settings(cell: Cell) -> dict[str, Any]:
    """Return the target with the peaks of its device, and the workload, which says what is measured."""
    workload, target = cell.spec.workload, cell.variant.target
    return {
        "target": target,
        **parallelism_settings(cell.variant),
        **({"peaks": PEAKS[target].to_settings()} if target in PEAKS else {}),
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        **({"kv_block_tokens": workload.kv_block_tokens} if cell.variant.kv_cache is KvCache.PAGED else {}),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the program; only the bindings of the compiler's release read what it wrote."""
    return [analysis_program(settings)]


def analysis_program(settings: Settings) -> Command:
    """Return the program; without peaks it measures those of its machine."""
    instruction = TARGETS[settings["target"]].matrix_instruction
    return program(
        "analyse",
        f"--dump={INPUTS}/compile/{DUMP_ARCHIVE}",
        *([f"--peaks={json.dumps(settings['peaks'], sort_keys=True)}"] if "peaks" in settings else []),
        *([f"--matrix-instruction={instruction}"] if instruction else []),
    )


def resources(cell: Cell) -> Resources:
    """Return one core: no device is needed."""
    return Resources(cpus=1, memory_bytes=2 * GIB)


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return the facts of the entry points that a benchmark of the workload times."""
    entries = read_report(folder, REPORT)["entries"]
    measurements: list[Measurement] = []
    for call in benchmark.timed_calls(settings):
        if call.function in entries:
            context = {"function": call.function, "batch": call.batch, "prompt_tokens": call.prompt_tokens}
            measurements += facts_of(entries[call.function], KINDS[call.metric], context)
    return Outcome(tuple(measurements))


def facts_of(entry: Mapping[str, Any], kind: str, context: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yield what the report says of an entry point; what its target or its sizes do not tell is left out."""
    for name in KERNEL_FACTS:
        is_known = name in entry and not (entry["dynamic_kernels"] and name in OF_SIZES)
        if is_known and (entry["devices"] > 1 or not name.startswith("link_")):
            yield Measurement(f"{kind}_{name}", (float(entry[name]),), context)


def figure(medians: Medians, target: str) -> str:
    """Return the floors of prefill and decode."""
    if not {"prefill_floor_ms", "decode_floor_ms"} <= medians.keys():
        return ""
    floors = "+".join(format_number(medians[f"{kind}_floor_ms"]) for kind in ("prefill", "decode"))
    spills = int(sum(medians.get(f"{kind}_spills", 0) for kind in ("prefill", "decode")))
    return f"{floors} ms{f', {spills} spills' if spills else ''}"


ANALYSE = Stage(
    name="analyse",
    title="floor",
    needs=("compile",),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={REPORT: "report", TEXT: "report"},
    is_default=False,
    figure=figure,
)
