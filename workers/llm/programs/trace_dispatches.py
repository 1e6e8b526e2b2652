r"""Record what each dispatch of a program returns, for comparing two programs call by call.

    python -m workers.llm.programs.trace_dispatches --model tiny-llama --precision f32 --tp 1 --batch 1 \
        --prompt-tokens 64 --cache-length 96 --parameters inputs/export --device local-task --compile-flag=... ...

The program is exported once more with its layers inlined, compiled with the same flags and one that has it print, and
called for a prompt and a decode step. Writes outputs/dispatches.json: {"precision", "limit", "batch", "prompt_tokens",
"results": {"prefill", "decode"}, "calls": [{"dispatch", "outputs"}]}, where logits and outputs are sketches of
workers.llm.numerics.dispatch_trace. What keeps it from recording is the report's "problem", and no failure. IREE prints
weights, too, so a large model takes long: make it smaller by its number of layers.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from workers.llm.command_line import run, write_json
from workers.llm.export.taps import Taps
from workers.llm.models.model_source import load_tokenizer
from workers.llm.numerics.comparison import take_windows
from workers.llm.numerics.dispatch_trace import TRACE_FLAG, Sketch, sketch_of, traced_calls
from workers.llm.numerics.layer_errors import split_phases
from workers.llm.programs.export import ExportRequest, read_request
from workers.llm.programs.locate import add_probe_arguments, limit_of, run_probe

REPORT = Path("outputs/dispatches.json")
STEPS = 1


def main() -> None:
    """Record what dispatches return."""
    args = parse_arguments()
    try:
        report = trace(read_request(args), args)
    except Exception as error:  # of the compiler, of its bindings under other releases
        report = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    write_json(REPORT, report)
    print(report.get("problem") or f"recorded {len(report['calls'])} dispatches", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.trace_dispatches", description=__doc__.split("\n")[0]
    )
    add_probe_arguments(parser)
    args = parser.parse_args()
    args.compile_flag.append(TRACE_FLAG)
    return args


def trace(request: ExportRequest, args: argparse.Namespace) -> dict[str, Any]:
    """Return the report."""
    prefill = next(entry for entry in request.entries if entry.kind == "prefill")
    steps = min(STEPS, request.cache.length - prefill.tokens)
    windows = take_windows(load_tokenizer(request.model), args.text, prefill.batch, prefill.tokens + steps)
    with traced_calls() as calls:
        run = run_probe(request, args, Taps(is_inlined=True), windows, steps).run
    if not calls:
        raise ValueError(f"the program printed nothing, although it was compiled with {TRACE_FLAG}")
    entries = tuple(entry.name for entry in request.entries)
    return {
        "precision": request.precision.name,
        "limit": limit_of(request.precision),
        "batch": prefill.batch,
        "prompt_tokens": prefill.tokens,
        "results": {phase: _sketch(logits) for phase, logits in split_phases(run.logits, [1] * prefill.batch).items()},
        "calls": [call for call in calls if call["dispatch"].startswith(entries)],  # without what runs once, on loading
    }


def _sketch(logits: torch.Tensor) -> Sketch:
    rows, vocabulary = logits.shape
    return sketch_of(f"{rows}x{vocabulary}xf32", logits.double().flatten().numpy())


if __name__ == "__main__":
    run(main)
