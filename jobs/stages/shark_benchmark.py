"""Benchmark on the SHARK route: as for haloctl's own programs, with the pages that sharktank's programs take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.stages import benchmark
from jobs.stages.base import INPUTS, Cell, Settings
from jobs.stages.shark_export import SHARKTANK
from jobs.targets import TARGETS
from jobs.task import Command, Outcome
from jobs.toolchains import Toolchain

FIRST_DEVICE = (
    "iree-benchmark-module puts all pages on the first device, so ttft_ms and itl_ms include their transfers to the "
    "other stages; whole generations keep each stage's pages on its own device"
)


def settings(cell: Cell) -> dict[str, Any]:
    """Return the workload, with the batch sizes of prefill and decode where they differ."""
    return {"exporter": SHARKTANK, **benchmark.settings(cell), **cell.spec.sharktank.batches(cell.spec.workload)}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the processes, whose inputs export writes because only it knows the number of elements of a page."""
    return benchmark.commands_with_flags(settings, _call_flags)


def _call_flags(settings: Settings, entry: benchmark.TimedCall) -> list[str]:
    return [f"--parameters=model={INPUTS}/export/model.irpa", f"--flagfile={INPUTS}/export/{entry.name}.flags"]


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return the metrics, with a warning for pipelines over devices that have memories of their own."""
    outcome = benchmark.parse(settings, folder)
    is_far = "pp" in settings and TARGETS[settings["target"]].torch_device != "cpu"
    return replace(outcome, warnings=(FIRST_DEVICE,)) if is_far else outcome


SHARK_BENCHMARK = replace(benchmark.BENCHMARK, settings=settings, commands=commands, parse=parse)
