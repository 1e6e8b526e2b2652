"""Where numbers part: the first decoder layer of a program that is off, and the module in it; a part of numerics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.stages import compile as compilation
from jobs.stages import export
from jobs.stages.base import INPUTS, OUTPUTS, Cell, Settings, device_count, program, read_report, text_flags
from jobs.targets import device_flags
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import HALOCTL

REPORT = "layers.json"
DISPATCHES = "dispatches.json"
MIN_PROMPT_TOKENS = 8  #: shorter prompts hide what is wrong with positions


def settings(cell: Cell, limits: Mapping[str, float]) -> dict[str, Any]:
    """Return how the program is made once more; nothing where the job does not ask for it, or can't have it.

    `limits` are those of the numerics report; beyond them numbers have failed.
    """
    where = cell.spec.numerics.where
    if where is None or cell.variant.exporter != HALOCTL:
        return {}
    exported = {**export.settings(cell), "batch": [min(cell.spec.workload.batch)], "prompt_tokens": [_bucket(cell)]}
    limits = dict(limits) if where == "failed" else {}
    dispatches = {"has_dispatches": True} if where == "dispatches" else {}
    return {"where": {"export": exported, "compile": compilation.settings(cell), "limits": limits, **dispatches}}


def _bucket(cell: Cell) -> int:
    """Return the shortest prompt that is long enough to tell."""
    prompts = sorted(cell.spec.workload.prompt_tokens)
    return next((tokens for tokens in prompts if tokens >= MIN_PROMPT_TOKENS), prompts[-1])


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the programs that compare layer by layer and record dispatches, as far as the settings ask for them."""
    if "where" not in settings:
        return []
    where = settings["where"]
    flags = compilation.code_flags(where["compile"], toolchain)
    limits = [f"{name}={limit!r}" for name, limit in sorted(where["limits"].items())]
    probed = [
        *export.export_flags(where["export"]),
        f"--parameters={INPUTS}/export",
        *text_flags(settings),
        *device_flags(settings["target"], device_count(settings)),
        *(f"--compile-flag={flag}" for flag in flags),
    ]
    return [
        program("locate", *probed, *(["--if-beyond", *limits] if limits else [])),
        *([program("trace_dispatches", *probed)] if "has_dispatches" in where else []),
    ]


def count_commands(settings: Settings) -> int:
    """Return the number of these programs."""
    return 1 + ("has_dispatches" in settings["where"]) if "where" in settings else 0


def finding(folder: Path) -> str:
    """Return in a few words where numbers part; empty where nobody looked."""
    if not (folder / OUTPUTS / REPORT).exists():
        return ""
    report = read_report(folder, REPORT)
    if "problem" in report:
        return f"where they part is not known: {report['problem']}"
    first, module = report["first"], report["module"]
    if first is None:
        return f"given its input, no layer is off by more than {report['limit']:g} of what it adds"
    within = f", and in it first {_place(module)}" if module else ""
    return f"they part in {first['module']}, {_amount(first['error'])} of what it adds in {first['phase']}{within}"


def _place(module: Mapping[str, Any]) -> str:
    return f"{module['module']} (off by {_amount(module['error'])}{_rank(module)})"


def _rank(module: Mapping[str, Any]) -> str:
    return f" on rank {module['rank']}" if "rank" in module else ""


def _amount(error: float | None) -> str:
    return "not finite" if error is None else f"{100 * error:.3g}%"
