"""Serve with vLLM: the same comparison and the same load as for haloctl's own server."""

from dataclasses import replace
from typing import Any

from jobs.stages.base import Cell, Settings, model_flags, program
from jobs.stages.serve import SERVE, load_flags
from jobs.stages.serve import settings as settings_of_load
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import Axes


def settings(cell: Cell) -> dict[str, Any]:
    """Return the model and the load; as many sequences run at a time as in the largest batch of a compiled program."""
    return {
        **settings_of_load(cell),
        "engine": cell.variant.engine,
        "max_rows": max(cell.spec.serve.decode_batch),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one program, which starts vLLM's server and is its client."""
    return [
        program(
            "measure_vllm_serving",
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--tp={settings['tp']}",
            f"--max-rows={settings['max_rows']}",
            *load_flags(settings),
        )
    ]


def applies_to(axes: Axes) -> bool:
    """Return True: vLLM's cache is always paged."""
    return True


VLLM_SERVE = replace(SERVE, needs=(), settings=settings, commands=commands, applies_to=applies_to)
