"""Export on the SHARK route: sharktank exports the program, under the toolchain that has it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.stages import export, quantize
from jobs.stages.base import INPUTS, Cell, Settings, model_flags, model_settings, program, read_report, workload_flags
from jobs.task import Command, Outcome
from jobs.toolchains import Toolchain

SHARKTANK = "sharktank"  #: the exporter's name
TOOLCHAIN = "shark-3.8"
DATASET = f"{INPUTS}/quantize/dataset.irpa"  #: Brevitas' own export for shark-ai


def settings(cell: Cell) -> dict[str, Any]:
    """Return nothing of the target, as haloctl's own export does."""
    workload = cell.spec.workload
    return {
        "exporter": SHARKTANK,
        "model": model_settings(cell),
        "precision": cell.variant.precision.value,
        **({"pp": cell.variant.pp} if cell.variant.pp > 1 else {}),
        "attention": cell.variant.attention.value,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "cache_tokens": workload.cache_tokens,
        **cell.spec.sharktank.batches(workload),
        **({"sharktank": cell.spec.sharktank.values} if cell.spec.sharktank.values else {}),
        **({"is_quantized": True} if quantize.is_planned(cell) else {}),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one program, which imports the model and has sharktank export it."""
    return [
        program(
            "shark_export",
            *model_flags(settings),
            f"--precision={settings['precision']}",
            *([f"--pp={settings['pp']}"] if "pp" in settings else []),
            f"--attention={settings['attention']}",
            *([f"--dataset={DATASET}"] if "is_quantized" in settings else []),
            *workload_flags(settings),
            *(f"--{name.replace('_', '-')}={value}" for name, value in settings.get("sharktank", {}).items()),
            *_batch_flags(settings),
            f"--cache-length={settings['cache_tokens']}",
        )
    ]


def _batch_flags(settings: Settings) -> Iterator[str]:
    for name in ("bs_prefill", "bs_decode"):
        if name in settings:
            yield from (f"--{name.replace('_', '-')}", *map(str, settings[name]))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return what haloctl's own export returns, with warnings of what sharktank leaves out of the model."""
    outcome = export.parse(settings, folder)
    return replace(outcome, warnings=tuple(read_report(folder, "export.json")["warnings"]))


def own_toolchain(settings: Settings) -> str:
    """Return the toolchain that has sharktank."""
    return TOOLCHAIN


SHARK_EXPORT = replace(
    export.EXPORT,
    settings=settings,
    commands=commands,
    parse=parse,
    artifacts={**export.EXPORT.artifacts, ".flags": "flags"},
    needs_weights=True,
    own_toolchain=own_toolchain,
)
