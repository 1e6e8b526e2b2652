"""Export: write a model as one multi-device MLIR module, its config and a parameter file for each rank."""

from pathlib import Path
from typing import Any

from jobs.stages import quantize
from jobs.stages.base import (
    INPUTS,
    Cell,
    Medians,
    Settings,
    Stage,
    cost_figure,
    is_served,
    memory_for,
    model_flags,
    model_settings,
    program,
    read_report,
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
OPTIONS = (
    "kv_precision",
    "fp8",
    "granularity",
    "inputs",
    "group_size",
    "block_tokens",
    "chunk_tokens",
    "kv_pool_blocks",
)  #: settings that are passed to the program if they are set


def settings(cell: Cell) -> dict[str, Any]:
    """Return nothing of the target but its kind of fp8, so that one export serves all targets."""
    workload, variant = cell.spec.workload, cell.variant
    has_fp8_cache = variant.kv_precision is KvPrecision.FP8
    return {
        "model": model_settings(cell),
        "precision": cell.variant.precision.value,
        "tp": cell.variant.tp,
        "attention": cell.variant.attention.value,
        "batch": sorted(workload.batch),
        "prompt_tokens": sorted(workload.prompt_tokens),
        "cache_tokens": workload.cache_tokens,
        **({"is_quantized": True} if quantize.is_planned(cell) else {}),
        **_scales(cell),
        **({"kv_precision": "fp8"} if has_fp8_cache else {}),
        **({"fp8": TARGETS[variant.target].fp8} if has_fp8_cache or variant.precision is Precision.FP8 else {}),
        **({"block_tokens": workload.kv_block_tokens} if cell.variant.kv_cache is KvCache.PAGED else {}),
        **(_serving(cell) if is_served(cell) else {}),
    }


def _serving(cell: Cell) -> dict[str, Any]:
    """Return the sizes of what a server calls."""
    serve = cell.spec.serve
    return {
        "decode_batch": sorted(serve.decode_batch),
        "prefill_batch": sorted(serve.prefill_batch),
        "chunk_tokens": serve.chunk_tokens,
        **({} if serve.kv_pool_blocks is None else {"kv_pool_blocks": serve.kv_pool_blocks}),
    }


def _scales(cell: Cell) -> dict[str, Any]:
    """Return how the weights of a shape are scaled, which has no quantizer, if the job says so."""
    section, precision = cell.spec.quantize, cell.variant.precision
    if cell.model.has_weights or precision not in QUANTIZED:
        return {}
    keys = ("group_size",) if precision is Precision.INT4 else ("granularity", "inputs")
    return {key: getattr(section, key) for key in keys if getattr(section, key) is not None}


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One program traces the model and writes everything."""
    return [program("export", *export_flags(settings))]


def export_flags(settings: Settings) -> list[str]:
    """Return the flags that say what is exported, and how."""
    return [
        *model_flags(settings),
        f"--precision={settings['precision']}",
        f"--tp={settings['tp']}",
        f"--attention={settings['attention']}",
        *workload_flags(settings),
        f"--cache-length={settings['cache_tokens']}",
        *([f"--quantized={INPUTS}/quantize"] if "is_quantized" in settings else []),
        *(f"--{key.replace('_', '-')}={settings[key]}" for key in OPTIONS if key in settings),
        *(
            flag
            for key in ("decode_batch", "prefill_batch")
            if key in settings
            for flag in (f"--{key.replace('_', '-')}", *map(str, settings[key]))
        ),
    ]


def resources(cell: Cell) -> Resources:
    """Return memory that does not grow with the model, because its weights are streamed."""
    return Resources(cpus=1, memory_bytes=memory_for(cell, 0))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return times and sizes as the program reports them."""
    facts = read_report(folder, "export.json")
    return Outcome(tuple(Measurement(METRICS[key], (float(facts[key]),)) for key in METRICS if key in facts))


def figure(medians: Medians, target: str) -> str:
    """Return the export's time and peak memory."""
    return cost_figure(medians, ("trace_s", "parameters_s"), "export_peak_bytes")


EXPORT = Stage(
    name="export",
    title="MLIR",
    needs=(),
    optional_needs=("quantize",),
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
    is_portable=True,  # compilers are compared on the same input
    figure=figure,
)
