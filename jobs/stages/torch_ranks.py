"""The ranks of the torch engines, on one node or several, each of which holds a shard of the model."""

import json
from typing import Any

from jobs.stages.base import OUTPUTS, Cell, Settings, memory_for, model_flags, model_settings, workload_flags
from jobs.targets import TARGETS
from jobs.task import GIB, Command, Resources

RANK_BYTES = GIB // 4  #: memory of a rank without its shard; the interpreter and its modules are shared
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  #: otherwise a cancelled rank prints a C++ stack as a warning


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the model and how it is split, which for other engines is part of export."""
    variant, workload = cell.variant, cell.spec.workload
    return {
        "engine": variant.engine,
        "nodes": variant.nodes,
        "model": model_settings(cell),
        "precision": variant.precision.value,
        "attention": variant.attention.value,
        "target": variant.target,
        "tp": variant.tp,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        **({"torch": options} if (options := torch_options(cell)) else {}),
    }


def torch_options(cell: Cell) -> dict[str, Any]:
    """Return the options of the section `torch` that the variant's engine has; kernels are tuned only on GPUs."""
    section = cell.spec.torch
    options: dict[str, Any] = {"compile_mode": section.compile_mode.value, "inductor": dict(section.inductor)}
    if section.tunable_op and TARGETS[cell.variant.target].torch_device != "cpu":
        options |= {"tunable_op": True, "tunable_op_ms": section.tunable_op_ms}
    return {key: value for key, value in options.items() if key in cell.torch_options}


def tunable_op_variables(options: Settings) -> dict[str, str]:
    """Return the environment variables that are TunableOp's interface; torch writes its choices into outputs/.

    See https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/tunable/README.md.
    """
    if not options.get("tunable_op"):
        return {}
    limit = options["tunable_op_ms"]
    return {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": f"{OUTPUTS}/tunableop.csv",  # torch inserts the device's number before the dot
        **({} if limit is None else {"PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS": str(limit)}),
    }


def ranks_command(name: str, settings: Settings, *flags: str) -> Command:
    """Return the command of a program that starts a node's ranks; its environment names the other nodes."""
    options = settings.get("torch", {})
    inductor = (f"--inductor={key}={json.dumps(value)}" for key, value in sorted(options.get("inductor", {}).items()))
    return Command(
        (
            *("python", "-m", f"workers.llm.programs.{name}"),
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--attention={settings['attention']}",
            f"--tp={settings['tp']}",
            f"--device={TARGETS[settings['target']].torch_device}",
            *workload_flags(settings),
            f"--new-tokens={settings['new_tokens']}",
            *([f"--compile={options['compile_mode']}"] if "compile_mode" in options else []),
            *inductor,
            *flags,
        ),
        {**QUIET, **tunable_op_variables(options)},
    )


def rank_resources(cell: Cell, *, bytes_per_parameter: float, cpus: int = 1, is_exclusive: bool = False) -> Resources:
    """Return a node's share of a variant: its ranks with a device each, and a core for each rank of a GPU."""
    variant = cell.variant
    rank_count = variant.tp // variant.nodes
    is_cpu = TARGETS[variant.target].torch_device == "cpu"
    memory_bytes = memory_for(cell, bytes_per_parameter) + rank_count * RANK_BYTES
    return Resources(
        cpus=cpus if is_cpu else max(cpus, rank_count),
        memory_bytes=memory_bytes,
        devices=rank_count,
        device_kind=variant.target,
        is_exclusive=is_exclusive,
        nodes=variant.nodes,
    )
