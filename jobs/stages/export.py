"""Export: a model becomes one multi-device MLIR module, its config and a parameter file for each rank."""

from pathlib import Path
from typing import Any

from jobs.stages.base import Cell, Settings, Stage, memory_for, model_flags, model_settings, program, report
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

METRICS = {
    "trace_s": "trace_s",
    "parameters_s": "parameters_s",
    "peak_rss_bytes": "export_peak_bytes",
    "mlir_bytes": "mlir_bytes",
    "parameter_bytes": "parameter_bytes",
}


def settings(cell: Cell) -> dict[str, Any]:
    """Nothing of the target: one export serves them all."""
    workload = cell.spec.workload
    return {
        "model": model_settings(cell.model),
        "precision": cell.variant.precision.value,
        "tp": cell.variant.tp,
        "attention": cell.variant.attention.value,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "cache_tokens": workload.cache_tokens,
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One program traces the model and writes everything."""
    return [
        program(
            "export",
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--tp={settings['tp']}",
            f"--attention={settings['attention']}",
            "--batch",
            *map(str, settings["batch"]),
            "--prompt-tokens",
            *map(str, settings["prompt_tokens"]),
            f"--cache-length={settings['cache_tokens']}",
        )
    ]


def resources(cell: Cell) -> Resources:
    """Weights are streamed, so memory does not grow with them."""
    return Resources(cpus=1, memory_bytes=memory_for(cell, 0))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Times and sizes, as the program reports them."""
    found = report(folder, "export.json")
    return Outcome(tuple(Measurement(METRICS[key], (float(found[key]),)) for key in METRICS if key in found))


EXPORT = Stage(
    name="export",
    title="MLIR",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"model.mlir": "mlir", "config.json": "config", ".irpa": "irpa", "export.json": "report"},
)
