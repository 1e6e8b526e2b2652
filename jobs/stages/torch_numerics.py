"""Numerics of the torch engine: the sharded model against the same model in one process, eager and in f32."""

from typing import Any

from jobs.stages.base import Cell, Settings, Stage
from jobs.stages.numerics import MAX_CPUS, PARAMETERS_PER_CPU, gates_of, parse
from jobs.stages.torch_ranks import on_nodes, ranks, settings_of
from jobs.task import Command, Resources
from jobs.toolchains import Toolchain


def settings(cell: Cell) -> dict[str, Any]:
    """The split, and how much to compare."""
    numerics = cell.spec.numerics
    return {
        **settings_of(cell),
        "windows": numerics.windows,
        "text": numerics.text,
        **gates_of(cell),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One program computes the reference, then the ranks are compared with it."""
    text = [f"--text={settings['text']}"] if settings["text"] else []
    return [ranks("torch_numerics", settings, f"--windows={settings['windows']}", *text)]


def resources(cell: Cell) -> Resources:
    """The devices, and host memory for the reference in f32; it is gone before the ranks load their shards."""
    cpus = min(MAX_CPUS, max(1, cell.model.parameters // PARAMETERS_PER_CPU))
    return on_nodes(cell, bytes_per_parameter=4, cpus=cpus)


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
)
