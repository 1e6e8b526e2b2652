"""Server: answer requests with the compiled program until it is cancelled."""

from pathlib import Path
from typing import Any

from jobs.stages.base import (
    Cell,
    Settings,
    Stage,
    device_count,
    memory_for,
    model_flags,
    model_settings,
    program,
)
from jobs.stages.invoke import PROGRAM_FLAGS
from jobs.stages.serve import applies_to
from jobs.targets import device_flags
from jobs.task import Command, Outcome, Resources
from jobs.toolchains import Toolchain


def settings(cell: Cell) -> dict[str, Any]:
    """Return the model, whose tokenizer is needed, and where to listen."""
    serve, variant = cell.spec.serve, cell.variant
    return {
        "model": model_settings(cell),
        "name": variant.model,
        "target": variant.target,
        "tp": variant.tp,
        "replicas": serve.replicas,
        "host": serve.host,
        "port": serve.port,
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the server, or what keeps several of them running behind one address."""
    replicas = settings["replicas"]
    return [
        program(
            "serve" if replicas == 1 else "serve_replicas",
            *model_flags(settings),
            *PROGRAM_FLAGS,
            *device_flags(settings["target"], replicas * device_count(settings)),
            f"--name={settings['name']}",
            f"--host={settings['host']}",
            f"--port={settings['port']}",
            *([f"--replicas={replicas}"] if replicas > 1 else []),
        )
    ]


def resources(cell: Cell) -> Resources:
    """Return the devices and the memory of all replicas, with a core for each of them."""
    replicas = cell.spec.serve.replicas
    return Resources(
        cpus=replicas,
        memory_bytes=replicas * memory_for(cell, 4),
        devices=replicas * cell.variant.device_count,
        device_kind=cell.variant.target,
    )


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return nothing: a server is ended, and what it did was told to those who asked it."""
    return Outcome()


SERVER = Stage(
    name="server",
    title="server",
    needs=("export", "compile"),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    is_default=False,
    is_service=True,
    needs_weights=True,
    applies_to=applies_to,
)
