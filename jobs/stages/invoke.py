"""Invoke: the module is loaded on the variant's devices, every entry point runs once and must answer finite logits."""

from pathlib import Path
from typing import Any

from jobs.stages.base import (
    INPUTS,
    Cell,
    Settings,
    Stage,
    devices_of,
    memory_for,
    on_devices,
    parallelism,
    program,
    report,
    wrong_numbers,
)
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

#: The program that invoke and numerics load.
PROGRAM_FLAGS = (f"--program={INPUTS}/export/config.json", f"--module={INPUTS}/compile/model.vmfb")


def settings(cell: Cell) -> dict[str, Any]:
    """Where it runs; what it runs are the inputs."""
    return {"target": cell.variant.target, **parallelism(cell.variant)}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One process on all the variant's devices."""
    return [program("invoke", *PROGRAM_FLAGS, *device_flags(settings["target"], devices_of(settings)))]


def resources(cell: Cell) -> Resources:
    """The variant's devices; on a CPU target the parameters are in the process's memory."""
    return on_devices(cell, memory_bytes=memory_for(cell, 4))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Fails where a logit is not a number."""
    found = report(folder, "invoke.json")
    broken = [call["entry_point"] for call in found["calls"] if not call["finite"]]
    failure = wrong_numbers(f"logits that are not finite from {', '.join(broken)}") if broken else None
    return Outcome((Measurement("load_s", (float(found["load_s"]),)),), failure=failure)


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
