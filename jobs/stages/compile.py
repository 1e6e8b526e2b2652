"""Compile: iree-compile makes the MLIR into a module for one target."""

from collections import Counter
from pathlib import Path
from typing import Any

from jobs.stages.base import INPUTS, OUTPUTS, Cell, Settings, Stage
from jobs.targets import TARGETS, compile_flags
from jobs.task import GIB, Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain

DUMP = "dump"  #: beside outputs/: what the compiler says of its dispatches, read and left behind
ENTRIES = ("prefill", "decode")
MATRIX_ROWS = 16  #: a matrix instruction computes 16 rows or more; below that a vector product is the right choice


def settings(cell: Cell) -> dict[str, Any]:
    """The target, and what its matrix units ought to be used for."""
    workload = cell.spec.workload
    return {
        "target": cell.variant.target,
        "tp": cell.variant.tp,
        "flags": list(cell.spec.compile.flags),
        "prefill_rows": max(workload.batch) * max(workload.prompt_tokens),
        "decode_rows": max(workload.batch),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """One iree-compile, with the flags as the toolchain's compiler spells them."""
    dump = (
        [f"--iree-hal-dump-executable-intermediates-to={DUMP}"] if TARGETS[settings["target"]].assembly_suffix else []
    )
    return [
        Command(
            (
                "iree-compile",
                f"{INPUTS}/export/model.mlir",
                "-o",
                f"{OUTPUTS}/model.vmfb",
                *compile_flags(settings["target"], settings["tp"], toolchain.compiler_flags),
                *dump,
                *settings["flags"],
            )
        )
    ]


def resources(cell: Cell) -> Resources:
    """No device: any node compiles for any target."""
    return Resources(cpus=1, memory_bytes=2 * GIB)


def count_matrix_instructions(folder: Path, instruction: str, suffix: str) -> Counter[str]:
    """Matrix instructions in the dumped assembly, by the kind of entry point whose kernel they are in.

    Kernels of several dispatches are linked into one file; each begins with `.globl` and its symbol, which starts
    with the name of the entry point.
    """
    counts: Counter[str] = Counter()
    for path in folder.rglob(f"*{suffix}"):
        entry = ""
        with path.open(errors="replace") as lines:
            for line in lines:
                words = line.split(maxsplit=2)
                if words[:1] == [".globl"]:
                    entry = next((name for name in ENTRIES if words[1].startswith(f"{name}_bs")), "other")
                counts[entry] += bool(words) and words[0].startswith(instruction)
    return counts


def parse(settings: Settings, folder: Path) -> Outcome:
    """The module's size and its matrix instructions; a warning where a matmul does without them."""
    measurements = [Measurement("vmfb_bytes", (float((folder / OUTPUTS / "model.vmfb").stat().st_size),))]
    target = TARGETS[settings["target"]]
    if not target.matrix_instruction:
        return Outcome(tuple(measurements))
    counts = count_matrix_instructions(folder / DUMP, target.matrix_instruction, target.assembly_suffix)
    warnings = []
    for entry in ENTRIES:
        measurements.append(Measurement(f"mfma_{entry}", (float(counts[entry]),)))
        if not counts[entry] and settings[f"{entry}_rows"] >= MATRIX_ROWS:
            warnings.append(f"no {target.matrix_instruction} in {entry}: its matmuls do not use the matrix units")
    return Outcome(tuple(measurements), tuple(warnings))


COMPILE = Stage(
    name="compile",
    title="vmfb",
    needs=("export",),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"model.vmfb": "vmfb"},
    has_program=False,
)
