r"""Serve a compiled program, check that what is served is what the model says, then measure it under load.

    python -m workers.llm.programs.measure_serving --model tiny-llama --program inputs/export/config.json \
        --module inputs/compile/model.vmfb --device local-task --prompt-tokens 64 --new-tokens 32 --concurrency 1 4

Writes outputs/serving.json: `numeric` (see workers.llm.serving_load.teacher_forcing) and one entry of `levels` for each
round of each level of load.
"""

import argparse
import asyncio
import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, positive_int, run, write_json
from workers.llm.models.model_source import LocalModel, load_model, load_tokenizer
from workers.llm.numerics.comparison import HELD_OUT_TEXT
from workers.llm.numerics.reference import load_reference
from workers.llm.programs.invoke import add_program_arguments
from workers.llm.programs.serve import KEY_VARIABLE
from workers.llm.runtime.iree_session import read_program
from workers.llm.serving_load.client import CompletionRequest, connect
from workers.llm.serving_load.levels import Level, measure_level
from workers.llm.serving_load.server_process import running_server
from workers.llm.serving_load.teacher_forcing import compare_served
from workers.llm.serving_load.workloads import mixed_requests

REPORT = Path("outputs/serving.json")
SEED = 20240501
LEAVING = 8  #: of so many requests of the numeric one more leaves after its first token


def main() -> None:
    """Check and measure the program of the command line."""
    args = parse_arguments()
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    program = read_program(args.program)
    key = secrets.token_urlsafe(24)  # other users of the machine reach loopback, too
    command = [
        *("-m", "workers.llm.programs.serve", f"--model={args.model}", f"--program={args.program}"),
        *(f"--module={args.module}", *(f"--device={uri}" for uri in args.device), f"--name={model.source.name}"),
        *([f"--revision={args.revision}"] if args.revision else []),
        *(f"--override={item}" for item in args.override),
    ]
    with running_server(command, Path("outputs/server.json"), {KEY_VARIABLE: key}) as url:
        numeric = check(args, model, program, url, key)
        print(json.dumps(numeric), flush=True)
        levels = asyncio.run(measure(args, model, program, url, key))
    write_json(REPORT, {"numeric": numeric, "levels": levels})


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.measure_serving", description=__doc__)
    add_model_arguments(parser)
    add_program_arguments(parser)
    parser.add_argument("--prompt-tokens", type=positive_int, nargs="+", required=True)
    parser.add_argument("--new-tokens", type=positive_int, required=True)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", required=True, help="requests in flight")
    parser.add_argument("--rate", type=float, nargs="*", default=[], help="requests per second, at random times")
    parser.add_argument("--offline", action="store_true", help="also send all requests at once")
    parser.add_argument("--requests", type=positive_int, default=8, help="of each level, times its concurrency")
    parser.add_argument("--rounds", type=positive_int, default=2, help="of all levels")
    parser.add_argument("--sequences", type=positive_int, default=48, help="that are compared with the reference")
    parser.add_argument("--text", type=Path, default=HELD_OUT_TEXT, help="UTF-8 text that their prompts are taken from")
    return parser.parse_args()


async def measure(
    args: argparse.Namespace, model: LocalModel, program: dict[str, Any], url: str, key: str
) -> list[dict[str, Any]]:
    """Return what was measured in each round of each level."""
    levels = []
    async with connect(url, model.source.name, key) as client:
        for number in range(args.rounds):
            for level in levels_of(args):
                print(f"round {number + 1}: {level.facts}", flush=True)
                levels.append(await measure_level(client, level, program["vocab_size"], SEED + number))
    return levels


def levels_of(args: argparse.Namespace) -> Iterator[Level]:
    """Yield the levels of one round."""
    for prompt in args.prompt_tokens:
        for concurrency in args.concurrency:
            yield Level(prompt, args.new_tokens, args.requests * concurrency, concurrency=concurrency)
        for rate in args.rate:
            yield Level(prompt, args.new_tokens, args.requests * max(args.concurrency), rate=rate)
        if args.offline:
            count = args.requests * max(args.concurrency)
            yield Level(prompt, args.new_tokens, count, concurrency=count)


def check(args: argparse.Namespace, model: LocalModel, program: dict[str, Any], url: str, key: str) -> dict[str, Any]:
    """Serve sequences of all lengths at more than the largest batch, and compare them with the reference."""
    largest = max(entry["batch"] for entry in program["entry_points"] if entry["kind"] == "decode")
    try:
        tokens = load_tokenizer(model)(args.text.read_text(encoding="utf-8"), verbose=False).input_ids
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"the text {args.text} cannot be read: {problem}") from None
    longest = max(program["prompt_tokens"])
    requests = mixed_requests(tokens, args.sequences, longest, program["cache_length"], SEED)
    served = asyncio.run(serve_all(requests, 2 * largest + 1, url, model.source.name, key))
    reference = load_reference(model)  # freed with this function: the server's memory is measured without it
    return compare_served(reference, requests, served)


async def serve_all(
    requests: Sequence[CompletionRequest], concurrency: int, url: str, model: str, key: str
) -> list[list[int]]:
    """Return the tokens of each request; every second one is streamed, and others leave meanwhile."""
    room = asyncio.Semaphore(concurrency)

    async def serve(number: int) -> list[int]:
        async with room:
            if number % LEAVING == 0:
                await client.leave_early(requests[number])
            return await client.tokens(requests[number], is_streamed=number % 2 == 0)

    async with connect(url, model, key) as client:
        return await asyncio.gather(*map(serve, range(len(requests))))


if __name__ == "__main__":
    run(main, has_children=True)
