r"""Measure how far a compiled program is from its model: logits, choices, distributions, perplexity.

    python -m workers.llm.programs.numerics --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --windows 16 --new-tokens 32

A program in low precision is compared with the same quantized weights in f32, too. Writes the report of
`workers.llm.numerics.comparison` to outputs/numerics.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, run
from workers.llm.models.model_source import LocalModel, load_model, read_config
from workers.llm.models.quantized_layout import read_layout
from workers.llm.numerics.comparison import add_comparison_arguments, compare, compute_reference, measure, write_report
from workers.llm.numerics.quantized_comparison import compare_quantized
from workers.llm.programs.invoke import add_program_arguments
from workers.llm.runtime.iree_session import read_program
from workers.llm.runtime.shark_session import load_session

REPORT = Path("outputs/numerics.json")


def main() -> None:
    """Measure the program against the reference."""
    args = parse_arguments()
    program = read_program(args.program)
    check_cache(program, args.new_tokens)
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    check_vocabulary(model, program)
    # each model is freed before the next one is loaded: memory holds one at a time
    results = compute_reference(model, program, args)
    measured = measure(load_session(args.program, args.module, args.device), results, args)
    report = compare(results, measured, args)
    layout = read_layout(program, args.program)
    if layout and report["finite"]:
        report |= compare_quantized(quantized_model(model, args.quantized), layout, results, measured)
    write_report(report, REPORT)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.numerics", description=__doc__.split("\n")[0])
    add_model_arguments(parser)
    add_program_arguments(parser)
    add_comparison_arguments(parser)
    parser.add_argument("--quantized", type=Path, help="the folder with the program's weights, if not the model's own")
    return parser.parse_args()


def quantized_model(model: LocalModel, folder: Path | None) -> LocalModel:
    """Return the model that holds the program's weights in low precision. Raises BadInput where its config can't be."""
    return replace(model, folder=folder, config=read_config(folder / "config.json", {})) if folder else model


def check_cache(program: dict[str, Any], new_tokens: int) -> None:
    """Raise BadInput when the longest prompt and the new tokens do not fit in the program's cache."""
    prompt_tokens, length = max(program["prompt_tokens"]), program["cache_length"]
    if prompt_tokens + new_tokens > length:
        raise BadInput(
            f"--new-tokens {new_tokens} after {prompt_tokens} prompt tokens does not fit in the program's cache of "
            f"{length}: give at most --new-tokens {length - prompt_tokens}, or export with a longer --cache-length"
        )


def check_vocabulary(model: LocalModel, program: dict[str, Any]) -> None:
    """Raise BadInput when the program cannot have been exported from the model."""
    if model.config.vocab_size != program["vocab_size"]:
        raise BadInput(
            f"the model has {model.config.vocab_size} tokens, the program {program['vocab_size']}: "
            f"give the --model that it was exported from ({program['model']['name']})"
        )


if __name__ == "__main__":
    run(main)
