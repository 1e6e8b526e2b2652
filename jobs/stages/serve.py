"""Serve: start a server with the compiled program, compare what it serves with the reference, measure it under load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.input_files import file_setting
from jobs.number_format import format_number
from jobs.stages.base import (
    Cell,
    Medians,
    Settings,
    Stage,
    device_count,
    device_resources,
    memory_for,
    model_flags,
    model_settings,
    needs_exclusive_node,
    program,
    read_report,
    text_flags,
    wrong_numbers,
)
from jobs.stages.invoke import PROGRAM_FLAGS
from jobs.stages.numerics import HARMLESS_FLIPS, tolerance_of
from jobs.stages.serving_metrics import load_measurements
from jobs.state import Failure
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import Axes, KvCache, KvPrecision, Precision

GAP_FACTOR = 10  #: the largest gap to the reference's own choice, in mean logit differences that numerics allows


def settings(cell: Cell) -> dict[str, Any]:
    """Return the model, which the reference is made of, and the load."""
    serve, workload, variant = cell.spec.serve, cell.spec.workload, cell.variant
    return {
        "model": model_settings(cell),
        "precision": variant.precision.value,
        **({} if variant.kv_precision is KvPrecision.SAME else {"kv_precision": variant.kv_precision.value}),
        "target": variant.target,
        "tp": variant.tp,
        "prompt_tokens": sorted(workload.prompt_tokens),
        "new_tokens": workload.new_tokens,
        "concurrency": sorted(serve.concurrency),
        "rates": sorted(serve.rates),
        "offline": serve.offline,
        "requests": serve.requests,
        "rounds": serve.rounds,
        "sequences": serve.sequences,
        "text": file_setting(cell.spec.numerics.text),
        "max_disturbed_reruns": cell.spec.benchmark.max_disturbed_reruns,
        **({"slo": serve.slo.model_dump(exclude_none=True)} if serve.slo else {}),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one program, which starts the server and is its client."""
    devices = device_flags(settings["target"], device_count(settings))
    return [program("measure_serving", *model_flags(settings), *PROGRAM_FLAGS, *devices, *load_flags(settings))]


def load_flags(settings: Settings) -> list[str]:
    """Return the flags that say how much is compared and measured."""
    return [
        *text_flags(settings),
        *("--prompt-tokens", *map(str, settings["prompt_tokens"])),
        f"--new-tokens={settings['new_tokens']}",
        *("--concurrency", *map(str, settings["concurrency"])),
        *(("--rate", *map(str, settings["rates"])) if settings["rates"] else ()),
        *(("--offline",) if settings["offline"] else ()),
        *(f"--{name}={settings[name]}" for name in ("requests", "rounds", "sequences")),
    ]


def resources(cell: Cell) -> Resources:
    """Return the variant's devices, a core for the client, and memory for the reference beside the program."""
    return device_resources(cell, cpus=2, memory_bytes=memory_for(cell, 8), is_exclusive=needs_exclusive_node(cell))


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return what was measured at each level of load, and a failure if what was served is not what the model says."""
    report = read_report(folder, "serving.json")
    numeric = report["numeric"]
    measurements = [
        Measurement("serving_other_tokens", (numeric["other_tokens"] / numeric["tokens"],), dict(numeric)),
        Measurement("serving_max_gap", (numeric["max_gap"],), dict(numeric)),
    ]
    measurements += load_measurements(report["levels"], device_count(settings), settings.get("slo"))
    disturbed = {str(each.context["disturbed"]) for each in measurements if "disturbed" in each.context}
    return Outcome(tuple(measurements), tuple(sorted(disturbed)), gate(settings, numeric))


def gate(settings: Settings, numeric: Mapping[str, Any]) -> Failure | None:
    """Return the failure of a server whose tokens are too often, or by too much, not the reference's choice."""
    kv_precision = KvPrecision(settings.get("kv_precision", KvPrecision.SAME))
    limit = tolerance_of(Precision(settings["precision"]), kv_precision)
    is_exact = Precision(settings["precision"]) is Precision.F32 and kv_precision is KvPrecision.SAME
    flips = 0 if is_exact else max(HARMLESS_FLIPS, (1 - limit.argmax_agreement) * numeric["tokens"])
    checks = (
        ("served tokens are not the reference's choice", numeric["other_tokens"], flips),
        (
            "is the largest gap to the logit of the reference's choice",
            numeric["max_gap"],
            GAP_FACTOR * limit.mean_logit_diff,
        ),
    )
    broken = [f"{value:.3g} {what}, at most {most:.3g} allowed" for what, value, most in checks if not value <= most]
    return wrong_numbers("; ".join(broken)) if broken else None


def applies_to(axes: Axes) -> bool:
    """Return whether a variant's program can be served: its cache is paged."""
    return axes.kv_cache is KvCache.PAGED


def figure(medians: Medians, target: str) -> str:
    """Return TTFT and time per output token at the lowest concurrency."""
    ttft_ms, tpot_ms = medians.get("serving_ttft_ms"), medians.get("serving_tpot_ms")
    if ttft_ms is None or tpot_ms is None:
        return ""
    return f"TTFT {format_number(ttft_ms)} ms, TPOT {format_number(tpot_ms)} ms"


SERVE = Stage(
    name="serve",
    title="serving",
    needs=("export", "compile"),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"serving.json": "report"},
    is_default=False,
    is_measured=True,
    needs_weights=True,
    applies_to=applies_to,
    figure=figure,
)
