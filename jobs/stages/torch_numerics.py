"""Numerics of the torch engines: compare the sharded model with the same model in one process, eager and in f32."""

from typing import Any

from jobs.input_files import file_setting
from jobs.stages.base import Cell, Settings, Stage, text_flags
from jobs.stages.numerics import MAX_CPUS, PARAMETERS_PER_CPU, figure, gates_of, parse
from jobs.stages.torch_ranks import rank_resources, ranks_command, settings_of
from jobs.task import Command, Resources
from jobs.toolchains import Toolchain


def settings(cell: Cell) -> dict[str, Any]:
    """Return the split and how much is compared."""
    numerics = cell.spec.numerics
    return {
        **settings_of(cell),
        "windows": numerics.windows,
        "text": file_setting(numerics.text),
        **gates_of(cell),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one program, which computes the reference and compares the ranks with it."""
    flags = (f"--windows={settings['windows']}", *text_flags(settings))
    return [ranks_command("torch_numerics", settings, *flags)]


def resources(cell: Cell) -> Resources:
    """Return the devices, and host memory for the reference in f32, which is freed before ranks load their shards."""
    cpus = min(MAX_CPUS, max(1, cell.model.parameters // PARAMETERS_PER_CPU))
    return rank_resources(cell, bytes_per_parameter=4, cpus=cpus)


TORCH_NUMERICS = Stage(
    name="numerics",
    title="numerics",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"numerics.json": "report"},
    needs_weights=True,
    figure=figure,
)
