"""What the stages of the torch engines share: ranks on one node or several, each holding a shard of the model."""

import json
from typing import Any

from jobs.stages.base import OUTPUTS, Cell, Settings, memory_for, model_flags, model_settings, workload_flags
from jobs.targets import TARGETS
from jobs.task import GIB, Command, Resources
from jobs.variants import Engine

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
        **({"torch": options} if (options := options_of(cell)) else {}),
    }


def options_of(cell: Cell) -> dict[str, Any]:
    """The options of torch that a variant of the job has: compiling is one engine's, tuning kernels is for GPUs."""
    torch, variant = cell.spec.torch, cell.variant
    compiled = {"compile_mode": torch.compile_mode.value, "inductor": dict(torch.inductor)}
    is_tuned = torch.tunable_op and TARGETS[variant.target].torch_device != "cpu"
    return {
        **(compiled if variant.engine is Engine.TORCH_COMPILE else {}),
        **({"tunable_op": True, "tunable_op_ms": torch.tunable_op_ms} if is_tuned else {}),
    }


def variables(options: Settings) -> dict[str, str]:
    """What torch is told of TunableOp, whose own interface is the environment; the choices that it makes are kept.

    See https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/tunable/README.md.
    """
    if not options.get("tunable_op"):
        return {}
    limit = options["tunable_op_ms"]
    return {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": f"{OUTPUTS}/tunableop.csv",  # torch puts the device's number before the dot
        **({} if limit is None else {"PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS": str(limit)}),
    }


def ranks(name: str, settings: Settings, *flags: str) -> Command:
    """A program that starts a node's ranks; it is told of the other nodes by its environment."""
    options = settings.get("torch", {})
    knobs = (f"--inductor={name}={json.dumps(value)}" for name, value in sorted(options.get("inductor", {}).items()))
    return Command(
        (
            *("python", "-m", f"workers.llm.{name}"),
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--attention={settings['attention']}",
            f"--tp={settings['tp']}",
            f"--device={TARGETS[settings['target']].torch_device}",
            *workload_flags(settings),
            f"--new-tokens={settings['new_tokens']}",
            *([f"--compile={options['compile_mode']}"] if "compile_mode" in options else []),
            *knobs,
            *flags,
        ),
        {**QUIET, **variables(options)},
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
