"""What the stages of the torch engine share: ranks on one node or several, each holding a shard of the model."""

from typing import Any

from jobs.stages.base import Cell, Settings, memory_for, model_flags, model_settings
from jobs.targets import TARGETS
from jobs.task import GIB, Command, Resources

RANK_BYTES = GIB // 4  #: of a rank's own memory, without its shard; the interpreter and its modules are shared
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  #: or a rank that is called off warns of it with a C++ stack


def settings_of(cell: Cell) -> dict[str, Any]:
    """The model and how it is split: all that another engine's export says."""
    variant, workload = cell.variant, cell.spec.workload
    return {
        "engine": variant.engine.value,
        "nodes": variant.nodes,
        "model": model_settings(cell.model),
        "precision": variant.precision.value,
        "attention": variant.attention.value,
        "target": variant.target,
        "tp": variant.tp,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
    }


def ranks(name: str, settings: Settings, *flags: str) -> Command:
    """A program that starts a node's ranks; it is told of the other nodes by its environment."""
    return Command(
        (
            *("python", "-m", f"workers.llm.{name}"),
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--attention={settings['attention']}",
            f"--tp={settings['tp']}",
            f"--device={TARGETS[settings['target']].torch_device}",
            "--batch",
            *map(str, settings["batch"]),
            "--prompt-tokens",
            *map(str, settings["prompt_tokens"]),
            f"--new-tokens={settings['new_tokens']}",
            *flags,
        ),
        QUIET,
    )


def on_nodes(cell: Cell, *, bytes_per_parameter: float, cpus: int = 1, is_quiet: bool = False) -> Resources:
    """A node's part of a variant: its ranks, a device for each. GPUs want a core each to be fed by."""
    variant = cell.variant
    here = variant.tp // variant.nodes
    is_host = TARGETS[variant.target].torch_device == "cpu"
    memory_bytes = memory_for(cell, bytes_per_parameter) + here * RANK_BYTES
    return Resources(
        cpus=cpus if is_host else max(cpus, here),
        memory_bytes=memory_bytes,
        devices=here,
        device_kind=variant.target,
        is_quiet=is_quiet,
        nodes=variant.nodes,
    )
