"""The stages of a program that haloctl did not make: MLIR, ONNX, or a compiled module.

`export` takes it over, or imports it from ONNX; `invoke` calls one of its functions with given arguments and compares
what it returns; `benchmark` times that function.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.input_files import InputFile, file_setting, path_of
from jobs.number_format import format_number
from jobs.process_order import ProcessOrder, order_processes, report_name
from jobs.stages import analyse, benchmark, compile, export, invoke
from jobs.stages.base import (
    INPUTS,
    OUTPUTS,
    Cell,
    Medians,
    Settings,
    base_model_settings,
    device_count,
    parallelism_settings,
    program,
    read_report,
    wrong_numbers,
)
from jobs.stages.compile_phases import phase_times
from jobs.targets import device_flags
from jobs.task import Command, Measurement, Outcome
from jobs.toolchains import DEFAULT, Toolchain

GIVEN = "given"  #: the exporter's name
ONNX = "onnx"  #: the toolchain that reads ONNX
MODULE, MLIR = "model.vmfb", "model.mlir"
COMPILED, ONNX_ENDING = ".vmfb", ".onnx"
CALL = "call"


def _is_compiled(settings: Settings) -> bool:
    return str(settings["model"]["text"]).endswith(COMPILED)


def import_settings(cell: Cell) -> dict[str, Any]:
    """Return the program's file."""
    return {"exporter": GIVEN, "model": base_model_settings(cell.model)}


def import_commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return a program that takes the file over, or the import of ONNX."""
    file = settings["model"]["text"]
    if file.endswith(ONNX_ENDING):
        return [Command(("python", "-m", "iree.compiler.tools.import_onnx", file, "-o", f"{OUTPUTS}/{MLIR}"))]
    return [_copy(file, MODULE if _is_compiled(settings) else MLIR)]


def _copy(file: str, name: str) -> Command:
    return program("take_over", f"--file={file}", f"--output={OUTPUTS}/{name}")


def import_toolchain(settings: Settings) -> str:
    """Return the toolchain that has ONNX, for such a file."""
    return ONNX if settings["model"]["text"].endswith(ONNX_ENDING) else DEFAULT


def _nothing(settings: Settings, folder: Path) -> Outcome:
    return Outcome()


def compile_settings(cell: Cell) -> dict[str, Any]:
    """Return the target and the flags."""
    chosen = {key: value for key, value in compile.settings(cell).items() if key in ("target", "tp", "flags")}
    return {**import_settings(cell), **chosen}


def compile_commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one iree-compile; a module that is compiled already is taken over."""
    if _is_compiled(settings):
        return [_copy(f"{INPUTS}/export/{MODULE}", MODULE)]
    flags = compile.code_flags(settings, toolchain)
    output = f"{OUTPUTS}/{MODULE}"
    return [Command(("iree-compile", f"{INPUTS}/export/{MLIR}", "-o", output, *flags, *compile.DUMP_FLAGS))]


def parse_compiled(settings: Settings, folder: Path) -> Outcome:
    """Return the module's size, and the time of each phase."""
    size_bytes = float((folder / OUTPUTS / MODULE).stat().st_size)
    return Outcome((Measurement("vmfb_bytes", (size_bytes,)), *phase_times(folder / compile.DUMP)))


def analyse_settings(cell: Cell) -> dict[str, Any]:
    """Return the target with its peaks, and the function."""
    chosen = {key: value for key, value in analyse.settings(cell).items() if key in ("target", "tp", "peaks")}
    return {"exporter": GIVEN, **chosen, "function": cell.spec.program.function}


def parse_analysed(settings: Settings, folder: Path) -> Outcome:
    """Return the facts of the function."""
    entry = read_report(folder, analyse.REPORT)["entries"].get(settings["function"])
    context = {"function": settings["function"]}
    return Outcome(tuple(analyse.facts_of(entry, CALL, context)) if entry else ())


def is_compiled_here(cell: Cell) -> bool:
    """Return whether the program is no compiled module yet, about which nothing is written."""
    return not cell.model.text.endswith(COMPILED)


def call_settings(cell: Cell) -> dict[str, Any]:
    """Return the function with its arguments."""
    return {
        "exporter": GIVEN,
        "target": cell.variant.target,
        **parallelism_settings(cell.variant),
        "function": cell.spec.program.function,
        "inputs": _numbered(cell.spec.program.inputs),
    }


def _numbered(values: list[Any]) -> dict[str, Any]:
    """Return files and arrays by their numbers."""
    return {
        str(number): file_setting(value) if isinstance(value, InputFile) else value
        for number, value in enumerate(values)
    }


def _call_flags(settings: Settings) -> list[str]:
    return [
        f"--module={INPUTS}/compile/{MODULE}",
        *device_flags(settings["target"], device_count(settings)),
        f"--function={settings['function']}",
        *(f"--input={_argument(value)}" for _, value in _in_order(settings["inputs"])),
    ]


def _in_order(numbered: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(numbered.items(), key=lambda pair: int(pair[0]))


def _argument(value: Mapping[str, str] | str) -> str:
    return value if isinstance(value, str) else f"@{path_of(value)}"


def invoke_settings(cell: Cell) -> dict[str, Any]:
    """Return the function with its arguments, and what it should return."""
    section = cell.spec.program
    expected = _numbered(list(section.expected))
    return {**call_settings(cell), "expected": expected, "tolerance": section.tolerance}


def invoke_commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return one iree-run-module, and a program that compares its results if some are expected."""
    expected = _in_order(settings["expected"])
    results = [f"{OUTPUTS}/result{number}.npy" for number, _ in expected]
    run = Command(("iree-run-module", *_call_flags(settings), *(f"--output=@{result}" for result in results)))
    if not expected:
        return [run]
    pairs = [f"--expected={path_of(file)}" for _, file in expected]
    return [run, program("compare_results", *pairs, *(f"--result={result}" for result in results))]


def parse_results(settings: Settings, folder: Path) -> Outcome:
    """Return the largest difference, and a failure if it is beyond the tolerance."""
    if not settings["expected"]:
        return Outcome()
    report = read_report(folder, "results.json")
    if report["problem"]:
        return Outcome(failure=wrong_numbers(report["problem"]))
    errors = [float(error) for error in report["errors"]]
    beyond = [
        f"result {number} differs by {error:.3g} of its largest value, at most {settings['tolerance']:g} allowed"
        for number, error in enumerate(errors)
        if error > settings["tolerance"]
    ]
    measured = (Measurement("output_error", (max(errors),)),)
    return Outcome(measured, failure=wrong_numbers("; ".join(beyond)) if beyond else None)


def benchmark_settings(cell: Cell) -> dict[str, Any]:
    """Return the function with its arguments, and how often it is timed."""
    return {**call_settings(cell), **benchmark.runtime_settings(cell), **benchmark.sampling_settings(cell)}


def benchmark_commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return a command for each process; its first repetitions are warm-up."""
    repetitions = settings["warmup"] + settings["repetitions"]
    order = ProcessOrder(settings["order"])
    return [
        Command(
            (
                "iree-benchmark-module",
                *_call_flags(settings),
                *settings.get("flags", ()),
                *benchmark.timing_flags(repetitions, report_name(name, process)),
            )
        )
        for name, process in order_processes([CALL], settings["processes"], order)
    ]


def parse_times(settings: Settings, folder: Path) -> Outcome:
    """Return the time of one call; samples of all processes follow one another."""
    warmup = settings["warmup"]
    reports = benchmark.read_reports(settings, CALL, folder)
    times = [benchmark.samples_ms(report) for report in reports]
    context = {
        "function": settings["function"],
        "warmup_ms": [sample for of_process in times for sample in of_process[:warmup]],
        "groups": [len(of_process) - warmup for of_process in times],
    }
    samples = tuple(sample for of_process in times for sample in of_process[warmup:])
    return Outcome((Measurement("call_ms", samples, context),))


def call_figure(medians: Medians, target: str) -> str:
    """Return the time of one call."""
    return f"{format_number(medians['call_ms'])} ms a call" if "call_ms" in medians else ""


def floor_figure(medians: Medians, target: str) -> str:
    """Return the floor of one call."""
    return f"{format_number(medians['call_floor_ms'])} ms" if "call_floor_ms" in medians else ""


def error_figure(medians: Medians, target: str) -> str:
    """Return the largest difference."""
    return f"differs by {medians['output_error']:.2g}" if "output_error" in medians else ""


def _count_processes(settings: Settings) -> int:
    return int(settings["processes"])


def _count_calls(settings: Settings) -> int:
    return 2 if settings["expected"] else 1


STAGES = {
    "export": replace(
        export.EXPORT,
        optional_needs=(),
        settings=import_settings,
        commands=import_commands,
        parse=_nothing,
        artifacts={MLIR: "mlir", MODULE: "vmfb"},
        own_toolchain=import_toolchain,
    ),
    "compile": replace(compile.COMPILE, settings=compile_settings, commands=compile_commands, parse=parse_compiled),
    "analyse": replace(
        analyse.ANALYSE,
        settings=analyse_settings,
        parse=parse_analysed,
        is_needed=is_compiled_here,
        figure=floor_figure,
    ),
    "invoke": replace(
        invoke.INVOKE,
        settings=invoke_settings,
        commands=invoke_commands,
        parse=parse_results,
        artifacts={"results.json": "report", ".npy": "table"},
        count_commands=_count_calls,
        figure=error_figure,
    ),
    "benchmark": replace(
        benchmark.BENCHMARK,
        settings=benchmark_settings,
        commands=benchmark_commands,
        parse=parse_times,
        observe=lambda settings, observed: iter(()),
        count_commands=_count_processes,
        figure=call_figure,
        needs_weights=False,
    ),
}
