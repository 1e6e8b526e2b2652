"""Compile: iree-compile makes the MLIR into a module for one target."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jobs.stages.base import INPUTS, OUTPUTS, Cell, Settings, Stage, devices_of, parallelism
from jobs.state import Failure, FailureKind
from jobs.targets import TARGETS, compile_flags
from jobs.task import GIB, Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import QUANTIZED

DUMP = "dump"  #: beside outputs/: what the compiler says of its dispatches, read and left behind
ENTRIES = ("prefill", "decode")
#: how the operands of a low-precision matrix instruction are called at its end: v_mfma_i32_16x16x32_i8; of gfx950 the
#: one for all small floats, which programs here use for fp8 alone
KINDS = {"fp8": ("_fp8_fp8", "_f8f6f4"), "int8": ("_i8",)}
#: elsewhere it is the default: weights of four bits are unpacked where one row is multiplied by them
UNPACKED_IN_PLACE = ("--iree-dispatch-creation-enable-aggressive-fusion",)
MATRIX_ROWS = 16  #: a matrix instruction computes 16 rows or more; below that a vector product is the right choice


def settings(cell: Cell) -> dict[str, Any]:
    """The target, and what its matrix units ought to be used for."""
    workload, precision = cell.spec.workload, cell.variant.precision
    return {
        "target": cell.variant.target,
        **parallelism(cell.variant),
        "flags": list(cell.spec.compile.flags),
        "prefill_rows": max(workload.batch) * max(workload.prompt_tokens),
        "decode_rows": max(workload.batch),
        **({"precision": precision.value} if precision in QUANTIZED else {}),
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
                *compile_flags(settings["target"], devices_of(settings), toolchain.compiler_flags),
                *dump,
                *(UNPACKED_IN_PLACE if (settings["target"], settings.get("precision")) == ("cpu", "int4") else []),
                *settings["flags"],
            )
        )
    ]


def resources(cell: Cell) -> Resources:
    """No device: any node compiles for any target."""
    return Resources(cpus=1, memory_bytes=2 * GIB)


def count_matrix_instructions(folder: Path, instruction: str, suffix: str) -> Counter[tuple[str, str]]:
    """Matrix instructions in the dumped assembly, by the kind of entry point whose kernel they are in and their name.

    Kernels of several dispatches are linked into one file; each begins with `.globl` and its symbol, which starts
    with the name of the entry point.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for path in folder.rglob(f"*{suffix}"):
        entry = ""
        with path.open(errors="replace") as lines:
            for line in lines:
                words = line.split(maxsplit=2)
                if words[:1] == [".globl"]:
                    entry = next((name for name in ENTRIES if words[1].startswith(f"{name}_bs")), "other")
                elif words and words[0].startswith(instruction):
                    counts[entry, words[0]] += 1
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
        kinds = {name: count for (where, name), count in counts.items() if where == entry}
        measurements.append(Measurement(f"mfma_{entry}", (float(sum(kinds.values())),)))
        measurements += [
            Measurement(f"mfma_{kind}_{entry}", (float(low),)) for kind, low in low_counts(kinds, settings)
        ]
        if not kinds and settings[f"{entry}_rows"] >= MATRIX_ROWS:
            warnings.append(f"no {target.matrix_instruction} in {entry}: its matmuls do not use the matrix units")
        wide = sum(count for name, count in kinds.items() if name.endswith("f32"))
        if wide and "precision" in settings:
            warnings.append(
                f"{wide} matrix instructions of f32 in {entry}: not all of it is in {settings['precision']}"
            )
    return Outcome(tuple(measurements), tuple(warnings), failure=not_low(measurements, settings))


def low_counts(kinds: Mapping[str, int], settings: Settings) -> list[tuple[str, int]]:
    """How many of an entry's matrix instructions are of the variant's precision, where there are such."""
    precision = settings.get("precision")
    if precision not in KINDS:
        return []
    return [(precision, sum(count for name, count in kinds.items() if name.endswith(KINDS[precision])))]


def not_low(measurements: Iterable[Measurement], settings: Settings) -> Failure | None:
    """A program that is not in the precision which its name says: it would be measured as what it is not."""
    precision = settings.get("precision")
    found = {each.metric: each.samples[0] for each in measurements}
    if settings["prefill_rows"] < MATRIX_ROWS or found.get(f"mfma_{precision}_prefill", 1):
        return None
    return Failure(
        FailureKind.TOOL_FAILED,
        f"no {precision} matrix instruction in prefill: the compiler widened the matmuls of this {precision} program",
    )


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
