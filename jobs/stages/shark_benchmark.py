"""Benchmark on the SHARK route: as of haloctl's own programs, with the pages that sharktank's are handed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.stages import benchmark
from jobs.stages.base import INPUTS, Cell, Settings
from jobs.targets import TARGETS
from jobs.task import Command, Outcome
from jobs.toolchains import Toolchain
from jobs.variants import Exporter

FIRST_DEVICE = (
    "iree-benchmark-module puts all pages on the first device: ttft_ms and itl_ms have their transfers to the other "
    "stages in them; whole generations keep each stage's pages on its own device"
)


def settings(cell: Cell) -> dict[str, Any]:
    """The same workload."""
    return {"exporter": Exporter.SHARKTANK.value, **benchmark.settings(cell)}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """The same processes; how many elements a page has, export alone knows, and writes it with the inputs."""
    return benchmark.commands_calling(settings, _call)


def _call(settings: Settings, entry: benchmark.Timed) -> list[str]:
    return [f"--parameters=model={INPUTS}/export/model.irpa", f"--flagfile={INPUTS}/export/{entry.name}.flags"]


def parse(settings: Settings, folder: Path) -> Outcome:
    """The same metrics; where devices have memories of their own, it says whose are what they seem."""
    found = benchmark.parse(settings, folder)
    is_far = "pp" in settings and TARGETS[settings["target"]].torch_device != "cpu"
    return replace(found, warnings=(FIRST_DEVICE,)) if is_far else found


SHARK_BENCHMARK = replace(benchmark.BENCHMARK, settings=settings, commands=commands, parse=parse)
