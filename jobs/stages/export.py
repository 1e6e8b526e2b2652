"""Export: a model becomes one multi-device MLIR module, its config and a parameter file for each rank."""

from pathlib import Path
from typing import Any

from jobs.stages import quantize
from jobs.stages.base import (
    INPUTS,
    Cell,
    Settings,
    Stage,
    memory_for,
    model_flags,
    model_settings,
    program,
    report,
    workload_flags,
)
from jobs.targets import TARGETS
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import QUANTIZED, KvCache, KvPrecision, Precision

METRICS = {
    "trace_s": "trace_s",
    "parameters_s": "parameters_s",
    "peak_rss_bytes": "export_peak_bytes",
    "mlir_bytes": "mlir_bytes",
    "parameter_bytes": "parameter_bytes",
}
OPTIONS = ("kv_precision", "fp8", "granularity", "inputs", "group_size")  #: given to the program where they are set


def settings(cell: Cell) -> dict[str, Any]:
    """Nothing of the target, but for the kind of its fp8: one export serves them all."""
    workload, variant = cell.spec.workload, cell.variant
    has_fp8_cache = variant.kv_precision is KvPrecision.FP8
    return {
        "model": model_settings(cell.model),
        "precision": cell.variant.precision.value,
        "tp": cell.variant.tp,
        "attention": cell.variant.attention.value,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "cache_tokens": workload.cache_tokens,
        **({"is_quantized": True} if quantize.is_made(cell) else {}),
        **_scales(cell),
        **({"kv_precision": "fp8"} if has_fp8_cache else {}),
        **({"fp8": TARGETS[variant.target].fp8} if has_fp8_cache or variant.precision is Precision.FP8 else {}),
        **({"block_tokens": workload.kv_block_tokens} if cell.variant.kv_cache is KvCache.PAGED else {}),
    }


def _scales(cell: Cell) -> dict[str, Any]:
    """How a shape's weights are to be scaled, which nobody quantizes, where the job says so."""
    asked, precision = cell.spec.quantize, cell.variant.precision
    if cell.model.has_weights or precision not in QUANTIZED:
        return {}
    keys = ("group_size",) if precision is Precision.INT4 else ("granularity", "inputs")
    return {key: getattr(asked, key) for key in keys if getattr(asked, key) is not None}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One program traces the model and writes everything."""
    return [
        program(
            "export",
            *model_flags(settings),
            f"--precision={settings['precision']}",
            f"--tp={settings['tp']}",
            f"--attention={settings['attention']}",
            *workload_flags(settings),
            f"--cache-length={settings['cache_tokens']}",
            *([f"--quantized={INPUTS}/quantize"] if "is_quantized" in settings else []),
            *(f"--{key.replace('_', '-')}={settings[key]}" for key in OPTIONS if key in settings),
            *([f"--block-tokens={settings['block_tokens']}"] if "block_tokens" in settings else []),
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
    may_need=("quantize",),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={
        "model.mlir": "mlir",
        "config.json": "config",
        ".irpa": "irpa",
        ".npy": "table",
        "export.json": "report",
    },
)
