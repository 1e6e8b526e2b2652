"""Quantize: a model's weights in low precision, with scales, in the layout that export reads."""

import json
from pathlib import Path
from typing import Any

from jobs.quantizers import MAKERS
from jobs.stages.base import Cell, Settings, Stage, memory_for, model_flags, model_settings, report
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import QUANTIZED, Quantizer, is_quantized

METRICS = {
    "quantize_s": "quantize_s",
    "peak_rss_bytes": "quantize_peak_bytes",
    "weight_bytes": "quantized_bytes",
}
BYTES_PER_PARAMETER = 10  #: the model in f32, its inputs' statistics, what is written
MAX_CPUS, PARAMETERS_PER_CPU = 16, 1_000_000_000


def is_for(cell: Cell) -> bool:
    """Whether a variant's weights have to be made first: a shape has none, and some models come quantized."""
    return is_quantized(cell.variant) and cell.model.has_weights and not cell.model.is_quantized


def is_made(cell: Cell) -> bool:
    """Whether what follows gets its weights from this stage."""
    return is_for(cell) and "quantize" in cell.spec.stages


def settings(cell: Cell) -> dict[str, Any]:
    """The precision, its scales, and all that the maker is told."""
    variant, asked = cell.variant, cell.spec.quantize
    offer = MAKERS[variant.quantizer].offers.get(variant.precision)
    is_grouped = offer is not None and "group" in offer.granularity
    return {
        "model": model_settings(cell.model),
        "maker": variant.quantizer.value,
        "precision": variant.precision.value if variant.precision in QUANTIZED else None,
        "kv_precision": variant.kv_precision.value,
        "granularity": (None if is_grouped else asked.granularity) or (offer.granularity[0] if offer else None),
        "inputs": (asked.inputs or offer.inputs[0]) if offer and offer.inputs else None,
        "group_size": asked.group_size if is_grouped else None,
        "windows": asked.windows,
        "tokens": asked.tokens,
        "text": asked.text,
        "options": dict(sorted(asked.options.get(variant.quantizer, {}).items())),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """The maker's program."""
    asked = ("precision", "granularity", "inputs", "group_size", "windows", "tokens", "text")
    flags = [f"--{key.replace('_', '-')}={settings[key]}" for key in asked if settings[key] is not None]
    options = [f"--option={key}={json.dumps(value)}" for key, value in settings["options"].items()]
    kv = ["--scale-kv-cache"] if settings["kv_precision"] != "same" else []
    program = f"workers.llm.quantizers.{settings['maker'].replace('-', '_')}"
    return [Command(("python", "-m", program, *model_flags(settings), *flags, *kv, *options))]


def own_toolchain(settings: Settings) -> str:
    """What the maker's program runs under."""
    return MAKERS[Quantizer(settings["maker"])].toolchain


def resources(cell: Cell) -> Resources:
    """The host holds the model while it reads the calibration text."""
    cpus = min(MAX_CPUS, max(1, cell.model.parameters // PARAMETERS_PER_CPU))
    return Resources(cpus=cpus, memory_bytes=memory_for(cell, BYTES_PER_PARAMETER))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Time and sizes; what the maker says of them stays in its report."""
    found = report(folder, "quantize.json")
    measurements = tuple(Measurement(METRICS[key], (float(found[key]),)) for key in METRICS if key in found)
    return Outcome(measurements, warnings=tuple(found.get("warnings", ())))


QUANTIZE = Stage(
    name="quantize",
    title="quantized",
    needs=(),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={
        "config.json": "config",
        ".safetensors": "weights",
        ".safetensors.index.json": "config",
        "dataset.irpa": "irpa",
        "quantize.json": "report",
    },
    needs_weights=True,
    is_for=is_for,
    own_toolchain=own_toolchain,
)
