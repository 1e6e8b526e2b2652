"""Compile: iree-compile compiles the MLIR into a module for one target."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs.runtime_flags import is_runtime_flag
from jobs.stages.base import (
    INPUTS,
    OUTPUTS,
    Archive,
    Cell,
    Medians,
    Observed,
    Settings,
    Stage,
    cost_figure,
    device_count,
    is_served,
    parallelism_settings,
)
from jobs.stages.compile_phases import phase_times
from jobs.stages.matrix_instructions import count_matrix_instructions
from jobs.state import Failure, FailureKind
from jobs.targets import TARGETS, compile_flags
from jobs.task import GIB, Command, Measurement, Outcome, Resources
from jobs.toolchains import Toolchain
from jobs.variants import QUANTIZED

DUMP = "dump"  #: a folder beside outputs/ for what the compiler writes about the program
DUMP_ARCHIVE = "dump.tar.gz"
#: The schedule, workgroups, chosen configurations and assembly: what `analyse` reads. 405B over 8 devices has 12 MB.
DUMP_FILES = ("*.stream.mlir", "*.executable-targets.mlir", "configured_*.mlir", "*.rocmasm", "*.s")
MAX_DUMP_BYTES = 256 << 20
DUMP_FLAGS = (
    f"--dump-compilation-phases-to={DUMP}",
    f"--iree-hal-dump-executable-intermediates-to={DUMP}",
    f"--iree-hal-dump-executable-configurations-to={DUMP}",
)
ENTRIES = ("prefill", "decode", "extend", "score")  #: functions of a program that run the model
#: endings of the names of low-precision matrix instructions, such as v_mfma_i32_16x16x32_i8; on gfx950 one instruction
#: is for all small floats, which programs here use only for fp8
KINDS = {"fp8": ("_fp8_fp8", "_f8f6f4"), "int8": ("_i8",)}
#: fuses the unpacking of int4 weights into matrix-vector products; needed only on CPUs, the default elsewhere
UNPACKED_IN_PLACE = ("--iree-dispatch-creation-enable-aggressive-fusion",)
MATRIX_ROWS = 16  #: a matrix instruction computes 16 rows or more; below that a vector product is the right choice


def settings(cell: Cell) -> dict[str, Any]:
    """Return the target, the flags, and the sizes that decide whether matrix units should be used."""
    workload, precision = cell.spec.workload, cell.variant.precision
    serve = cell.spec.serve if is_served(cell) else None
    part_rows = max(serve.prefill_batch) * serve.chunk_tokens if serve else 0
    return {
        "target": cell.variant.target,
        **parallelism_settings(cell.variant),
        "flags": [*cell.spec.compile.flags, *(flag for flag in cell.flags if not is_runtime_flag(flag))],
        "prefill_rows": max(workload.batch) * max(workload.prompt_tokens),
        "decode_rows": max((*workload.batch, *(serve.decode_batch if serve else ()))),
        **({"extend_rows": part_rows, "score_rows": part_rows} if serve else {}),
        **({"precision": precision.value} if precision in QUANTIZED else {}),
    }


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one iree-compile, with the flags as the toolchain's compiler spells them."""
    return [
        Command(
            (
                "iree-compile",
                f"{INPUTS}/export/model.mlir",
                "-o",
                f"{OUTPUTS}/model.vmfb",
                *code_flags(settings, toolchain),
                *DUMP_FLAGS,
            )
        )
    ]


def code_flags(settings: Settings, toolchain: Toolchain) -> list[str]:
    """Return the flags that decide which code is generated."""
    return [
        *compile_flags(settings["target"], device_count(settings), toolchain.compiler_flags),
        *(UNPACKED_IN_PLACE if (settings["target"], settings.get("precision")) == ("cpu", "int4") else []),
        *settings["flags"],
    ]


def resources(cell: Cell) -> Resources:
    """Return no device, because any node compiles for any target."""
    return Resources(cpus=1, memory_bytes=2 * GIB)


def parse(settings: Settings, folder: Path) -> Outcome:
    """Return the module's size, the time of each phase and the matrix instructions, with warnings where these lack."""
    size_bytes = float((folder / OUTPUTS / "model.vmfb").stat().st_size)
    measurements = [Measurement("vmfb_bytes", (size_bytes,)), *phase_times(folder / DUMP)]
    target = TARGETS[settings["target"]]
    if not target.matrix_instruction:
        return Outcome(tuple(measurements))
    entries = [entry for entry in ENTRIES if f"{entry}_rows" in settings]
    instruction, suffix = target.matrix_instruction, target.assembly_suffix
    warnings = []
    for entry, kinds in count_matrix_instructions(folder / DUMP, instruction, suffix, entries).items():
        measurements.append(Measurement(f"mfma_{entry}", (float(sum(kinds.values())),)))
        measurements += [
            Measurement(f"mfma_{kind}_{entry}", (float(low),)) for kind, low in low_counts(kinds, settings)
        ]
        if not kinds and settings[f"{entry}_rows"] >= MATRIX_ROWS:
            warnings.append(f"no {target.matrix_instruction} in {entry}: its matmuls do not use the matrix units")
        wide = sum(count for name, count in kinds.items() if name.endswith("f32"))
        if wide and "precision" in settings:
            warnings.append(
                f"{wide} matrix instructions of f32 in {entry}: part of it is not in {settings['precision']}"
            )
    return Outcome(tuple(measurements), tuple(warnings), failure=widened_failure(measurements, settings))


def low_counts(kinds: Mapping[str, int], settings: Settings) -> list[tuple[str, int]]:
    """Return the number of an entry point's matrix instructions in the variant's precision, if it has such."""
    precision = settings.get("precision")
    if precision not in KINDS:
        return []
    return [(precision, sum(count for name, count in kinds.items() if name.endswith(KINDS[precision])))]


def widened_failure(measurements: Iterable[Measurement], settings: Settings) -> Failure | None:
    """Return the failure of a program that is not in its variant's precision, whose timings would mislead."""
    precision = settings.get("precision")
    values = {measurement.metric: measurement.samples[0] for measurement in measurements}
    if settings["prefill_rows"] < MATRIX_ROWS or values.get(f"mfma_{precision}_prefill", 1):
        return None
    return Failure(
        FailureKind.TOOL_FAILED,
        f"no {precision} matrix instruction in prefill: the compiler widened the matmuls of this {precision} program",
    )


def observe(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    """Yield the compiler's time and peak memory."""
    for process, _ in observed:
        yield Measurement("compile_s", (process.wall_s,))
        yield Measurement("compile_peak_bytes", (float(process.peak_rss_bytes),))


def figure(medians: Medians, target: str) -> str:
    """Return the compiler's cost, and the matrix instructions of prefill and decode on targets that have such."""
    cost = cost_figure(medians, ("compile_s",), "compile_peak_bytes")
    if not TARGETS[target].matrix_instruction or "mfma_prefill" not in medians:
        return cost
    instructions = f"{medians['mfma_prefill']:.0f}+{medians.get('mfma_decode', 0):.0f} MFMA"
    return f"{cost}, {instructions}" if cost else instructions


COMPILE = Stage(
    name="compile",
    title="vmfb",
    needs=("export",),
    settings=settings,
    commands=commands,
    resources=resources,
    parse=parse,
    artifacts={"model.vmfb": "vmfb"},
    archives={DUMP_ARCHIVE: Archive(DUMP, DUMP_FILES, "dump", MAX_DUMP_BYTES)},
    version=2,
    has_program=False,
    observe=observe,
    figure=figure,
)
