"""Quantize: write a model's weights in low precision with their scales, in the layout that export reads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.input_files import InputFile, file_setting, path_of
from jobs.quantizers import QUANTIZERS
from jobs.stages.base import (
    Cell,
    Settings,
    Stage,
    memory_for,
    model_flags,
    model_settings,
    read_report,
    text_flags,
)
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import QUANTIZED, is_quantized

METRICS = {
    "quantize_s": "quantize_s",
    "peak_rss_bytes": "quantize_peak_bytes",
    "weight_bytes": "quantized_bytes",
}
BYTES_PER_PARAMETER = 10  #: the model in f32, the statistics of its inputs and the output
MAX_CPUS, PARAMETERS_PER_CPU = 16, 1_000_000_000


def is_needed(cell: Cell) -> bool:
    """Return whether the model has weights that are not quantized yet."""
    return cell.model.has_weights and not cell.model.is_quantized


def is_planned(cell: Cell) -> bool:
    """Return whether later stages get a variant's weights from this stage."""
    return is_quantized(cell.variant) and is_needed(cell) and "quantize" in cell.spec.stages


def settings(cell: Cell) -> dict[str, Any]:
    """Return the precision, its scales, and everything else that the quantizer is given."""
    variant, section = cell.variant, cell.spec.quantize
    scheme = QUANTIZERS[variant.quantizer].schemes.get(variant.precision)
    options = section.options.get(variant.quantizer, {})
    is_grouped = scheme is not None and "group" in scheme.granularity
    return {
        "model": model_settings(cell),
        "quantizer": variant.quantizer,
        "precision": variant.precision.value if variant.precision in QUANTIZED else None,
        "kv_precision": variant.kv_precision.value,
        "granularity": (None if is_grouped else section.granularity) or (scheme.granularity[0] if scheme else None),
        "inputs": (section.inputs or scheme.inputs[0]) if scheme and scheme.inputs else None,
        "group_size": section.group_size if is_grouped else None,
        "windows": section.windows,
        "tokens": section.tokens,
        "text": file_setting(section.text),
        "options": {key: _option_setting(value) for key, value in sorted(options.items())},
    }


def _option_setting(value: object) -> object:
    return file_setting(value) if isinstance(value, InputFile) else value


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the quantizer's program."""
    keys = ("precision", "granularity", "inputs", "group_size", "windows", "tokens")
    flags = [f"--{key.replace('_', '-')}={settings[key]}" for key in keys if settings[key] is not None]
    flags += text_flags(settings)
    values = {
        key: path_of(value) if isinstance(value, Mapping) else value for key, value in settings["options"].items()
    }
    options = [f"--option={key}={json.dumps(value)}" for key, value in values.items()]
    kv = ["--scale-kv-cache"] if settings["kv_precision"] != "same" else []
    program = f"workers.llm.quantizers.{settings['quantizer'].replace('-', '_')}"
    return [Command(("python", "-m", program, *model_flags(settings), *flags, *kv, *options))]


def own_toolchain(settings: Settings) -> str:
    """Return what the quantizer's program runs under."""
    return QUANTIZERS[settings["quantizer"]].toolchain


def resources(cell: Cell) -> Resources:
    """Return memory for the model in f32 on the host, which reads the calibration text with it."""
    cpus = min(MAX_CPUS, max(1, cell.model.parameters // PARAMETERS_PER_CPU))
    return Resources(cpus=cpus, memory_bytes=memory_for(cell, BYTES_PER_PARAMETER))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return time, sizes and warnings."""
    report = read_report(folder, "quantize.json")
    measurements = tuple(Measurement(METRICS[key], (float(report[key]),)) for key in METRICS if key in report)
    return Outcome(measurements, warnings=tuple(report.get("warnings", ())))


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
    is_portable=True,
    applies_to=is_quantized,
    is_needed=is_needed,
    own_toolchain=own_toolchain,
)
