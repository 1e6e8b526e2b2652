"""Invoke: load the module on the variant's devices and call each entry point once, which must return finite logits."""

from pathlib import Path
from typing import Any

from jobs.stages.base import (
    INPUTS,
    Cell,
    Settings,
    Stage,
    device_count,
    device_resources,
    memory_for,
    parallelism_settings,
    program,
    read_report,
    wrong_numbers,
)
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

#: The flags that name the exported and compiled program.
PROGRAM_FLAGS = (f"--program={INPUTS}/export/config.json", f"--module={INPUTS}/compile/model.vmfb")


def settings(cell: Cell) -> dict[str, Any]:
    """Return the target and the devices; the program is an input."""
    return {"target": cell.variant.target, **parallelism_settings(cell.variant)}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one process for all of the variant's devices."""
    return [program("invoke", *PROGRAM_FLAGS, *device_flags(settings["target"], device_count(settings)))]


def resources(cell: Cell) -> Resources:
    """Return the variant's devices; on a CPU target the process's memory holds the parameters."""
    return device_resources(cell, memory_bytes=memory_for(cell, 4))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return the load time, and a failure if a logit is not finite."""
    report = read_report(folder, "invoke.json")
    broken = [call["entry_point"] for call in report["calls"] if not call["finite"]]
    failure = wrong_numbers(f"logits are not finite from {', '.join(broken)}") if broken else None
    return Outcome((Measurement("load_s", (float(report["load_s"]),)),), failure=failure)


INVOKE = Stage(
    name="invoke",
    title="invocation",
    needs=("export", "compile"),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"invoke.json": "report"},
    needs_weights=True,
)
