r"""Find where a program's numbers part from the model: the first decoder layer that is off, and the module in it.

    python -m workers.llm.programs.locate --model tiny-llama --precision f32 --tp 1 --batch 1 --prompt-tokens 64 \
        --cache-length 96 --parameters inputs/export --device local-task --compile-flag=--iree-opt-level=O3 ...

The program is exported once more with its hidden states as results, compiled with the same flags, and run with the same
parameters; each layer of the reference is fed with what the program fed its own (`workers.llm.numerics.layer_errors`).
Then the layer that is off is exported with the outputs of its modules. Writes outputs/layers.json: {"precision",
"limit", "batch", "prompt_tokens", "layers": [{"module", "prefill": {"error", "drift"}, "decode": ...}], "first":
{"module", "phase", "error"} or null, "modules": [{"module", "rank", "prefill", "decode"}], "module": {...} or null}.
With --if-beyond it does nothing unless outputs/numerics.json has a value beyond one of the limits. What keeps it from
comparing is the report's "problem", and no failure: numbers are what they are, whether anybody knows why or not.
"""

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from iree.compiler.tools.binaries import find_tool

from workers.llm.command_line import BadInput, run, write_json
from workers.llm.export.taps import TapOutput, Taps
from workers.llm.models.model_source import load_tokenizer
from workers.llm.numerics.comparison import HELD_OUT_TEXT, take_windows
from workers.llm.numerics.layer_errors import LIMITS, ModuleErrors, first_beyond
from workers.llm.numerics.layerwise import LayerwiseReference
from workers.llm.numerics.reference import load_reference
from workers.llm.numerics.tapped_run import TappedRun, run_tapped
from workers.llm.programs.export import (
    ExportRequest,
    add_export_arguments,
    build_program,
    prepare,
    read_request,
    write_config,
)
from workers.llm.programs.numerics import quantized_model
from workers.llm.quantized.quantized_model import ProgramPrecision
from workers.llm.runtime.iree_session import IreeSession
from workers.llm.sharding.plan import Sharding

NUMERICS, REPORT = Path("outputs/numerics.json"), Path("outputs/layers.json")
STEPS = 4  #: decode steps behind each prompt


def main() -> None:
    """Compare layer by layer, unless the numbers are within the limits already."""
    args = parse_arguments()
    if args.if_beyond and not is_beyond(json.loads(NUMERICS.read_text()), parse_limits(args.if_beyond)):
        return
    try:
        report = locate(read_request(args), args)
    except Exception as error:  # of the compiler, of its bindings under other releases, of a family's code
        report = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    write_json(REPORT, report)
    print(describe(report), flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.locate", description=__doc__.split("\n")[0])
    add_probe_arguments(parser)
    parser.add_argument("--if-beyond", nargs="+", metavar="NAME=LIMIT", help="limits of values in numerics.json")
    return parser.parse_args()


def add_probe_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a program that makes another one once more, to look into it."""
    add_export_arguments(parser)
    parser.add_argument("--device", action="append", required=True, help="IREE device URI, for each logical device")
    parser.add_argument("--parameters", type=Path, required=True, help="the folder with the program's parameters")
    parser.add_argument("--compile-flag", action="append", default=[], help="of iree-compile; may be repeated")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="UTF-8 text the model was not trained on")


def parse_limits(texts: list[str]) -> dict[str, float]:
    """Parse `NAME=LIMIT`."""
    try:
        return {name: float(limit) for name, _, limit in (text.partition("=") for text in texts)}
    except ValueError:
        raise BadInput(f"--if-beyond {' '.join(texts)}: expected NAME=LIMIT, such as kl_mean=1e-5") from None


def is_beyond(report: dict[str, Any], limits: dict[str, float]) -> bool:
    """Return whether a value is above its limit, or none at all."""
    return any(report.get(name) is None or report[name] > limit for name, limit in limits.items())


class CompilerFailed(Exception):
    """The compiler refuses a program; the message is its first error."""


@dataclass(frozen=True)
class Probe:
    """A tapped run of a program, and how the program is split."""

    run: TappedRun
    sharding: Sharding


def locate(request: ExportRequest, args: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    prefill = next(entry for entry in request.entries if entry.kind == "prefill")
    steps = min(STEPS, request.cache.length - prefill.tokens)
    windows = take_windows(load_tokenizer(request.model), args.text, prefill.batch, prefill.tokens + steps)
    limit = limit_of(request.precision)
    states = probe(request, args, Taps(has_states=True), windows, steps)
    reference = LayerwiseReference(load_reference(quantized_model(request.model, args.quantized)).model)
    layers = reference.compare_layers(states.run)
    first = first_beyond(layers, limit)
    modules: list[ModuleErrors] = []
    if first and first.module in reference.layers:
        taps = Taps(True, frozenset({first.module}), is_inlined=request.tp > 1)
        tapped = probe(request, args, taps, windows, steps)
        modules = reference.compare_modules(first.module, tapped.run, tapped.run, tapped.sharding)
    return {
        "precision": request.precision.name,
        "limit": limit,
        "batch": prefill.batch,
        "prompt_tokens": prefill.tokens,
        "layers": [errors.to_json() for errors in layers],
        "first": _finding(first),
        "modules": [errors.to_json() for errors in modules],
        "module": _finding(first_beyond(modules, limit)),
    }


def limit_of(precision: ProgramPrecision) -> float:
    """Return the largest error of a layer; a KV cache in fp8 is allowed what weights and inputs in fp8 are."""
    return max(LIMITS[precision.name], LIMITS["fp8"] if precision.kv_is_fp8 else 0.0)


def probe(request: ExportRequest, args: argparse.Namespace, taps: Taps, windows: torch.Tensor, steps: int) -> Probe:
    """Export, compile and run the program with taps; with its layers inlined where IREE can't compile it otherwise."""
    try:
        return run_probe(request, args, taps, windows, steps)
    except CompilerFailed:
        if taps.is_inlined:
            raise
        print("compiling it with its layers inlined", flush=True)
        return run_probe(request, args, replace(taps, is_inlined=True), windows, steps)


def run_probe(request: ExportRequest, args: argparse.Namespace, taps: Taps, windows: torch.Tensor, steps: int) -> Probe:
    """Export, compile and run the program with taps. Raises CompilerFailed."""
    with TemporaryDirectory(dir=".") as scratch:
        folder = Path(scratch)
        prepared = prepare(request)
        text, _, outputs = build_program(prepared, taps)
        (folder / "model.mlir").write_text(text)
        write_config(prepared.request, prepared.quantized, folder)
        add_results(folder / "config.json", outputs)
        compile_program(folder / "model.mlir", folder / "model.vmfb", args.compile_flag)
        print(f"compiled with {sum(map(len, outputs.values()))} taps", flush=True)
        session = IreeSession(folder / "config.json", folder / "model.vmfb", args.device, args.parameters)
        prefill = next(entry.name for entry in request.entries if entry.kind == "prefill")
        return Probe(run_tapped(session, outputs[prefill], windows, steps), prepared.sharding)


def add_results(config: Path, taps: Mapping[str, Sequence[TapOutput]]) -> None:
    """Add what is tapped to the results of each entry point in a program's config.json."""
    program = json.loads(config.read_text(encoding="utf-8"))
    for entry in program["entry_points"]:
        entry["results"] += [{"name": tap.name} for tap in taps[entry["name"]]]
    write_json(config, program)


def compile_program(mlir: Path, vmfb: Path, flags: list[str]) -> None:
    """Run the iree-compile of this environment. Raises CompilerFailed with its error."""
    argv = [find_tool("iree-compile"), str(mlir), "-o", str(vmfb), *flags]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        error = next((line for line in done.stderr.splitlines() if "error:" in line), f"exit code {done.returncode}")
        message = error.partition("error:")[2].strip() or error
        raise CompilerFailed(f"iree-compile can't compile the program with taps: {message}")


def _finding(errors: ModuleErrors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    phase, _ = errors.worst()
    at_rank = {} if errors.rank is None else {"rank": errors.rank}
    return {"module": errors.module, **at_rank, "phase": phase, "error": errors.phases[phase].error}


def describe(report: dict[str, Any]) -> str:
    """Return the finding in one line."""
    if "problem" in report:
        return f"where numbers part is not known: {report['problem']}"
    if not report["first"]:
        return f"no layer is off by more than {report['limit']:g} of what it adds"
    return f"numbers part in {(report['module'] or report['first'])['module']}"


if __name__ == "__main__":
    run(main)
