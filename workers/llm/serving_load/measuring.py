"""What is done with a server that answers: its tokens are held against the reference, then load is put on it."""

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel, load_tokenizer
from workers.llm.numerics.reference import load_reference
from workers.llm.serving_load.client import CompletionRequest, connect
from workers.llm.serving_load.levels import Level, measure_level
from workers.llm.serving_load.teacher_forcing import compare_served
from workers.llm.serving_load.workloads import mixed_requests

SEED = 20240501
LEAVING = 8  #: of so many requests of the comparison another one leaves after its first token


@dataclass(frozen=True)
class RunningServer:
    """Where a server answers, and what its program can take."""

    url: str
    key: str
    largest_batch: int  #: more requests than these in flight wait for each other
    longest_prompt: int
    most_tokens: int  #: of a sequence, new ones included


def check_and_measure(args: argparse.Namespace, model: LocalModel, server: RunningServer) -> dict[str, Any]:
    """Return the report: `numeric`, and an entry of `levels` for each round of each level of load."""
    numeric = check(args, model, server)
    print(json.dumps(numeric), flush=True)
    return {"numeric": numeric, "levels": asyncio.run(measure(args, model, server))}


async def measure(args: argparse.Namespace, model: LocalModel, server: RunningServer) -> list[dict[str, Any]]:
    """Return what was measured in each round of each level."""
    levels = []
    async with connect(server.url, model.source.name, server.key) as client:
        for number in range(args.rounds):
            for level in levels_of(args):
                print(f"round {number + 1}: {level.facts}", flush=True)
                levels.append(await measure_level(client, level, model.config.vocab_size, SEED + number))
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


def check(args: argparse.Namespace, model: LocalModel, server: RunningServer) -> dict[str, Any]:
    """Serve sequences of all lengths at more than the largest batch, and compare them with the reference."""
    try:
        tokens = load_tokenizer(model)(args.text.read_text(encoding="utf-8"), verbose=False).input_ids
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"the text {args.text} cannot be read: {problem}") from None
    requests = mixed_requests(tokens, args.sequences, server.longest_prompt, server.most_tokens, SEED)
    served = asyncio.run(serve_all(requests, 2 * server.largest_batch + 1, server, model.source.name))
    reference = load_reference(model)  # freed with this function: it must not weigh on what is measured
    return compare_served(reference, requests, served)


async def serve_all(
    requests: Sequence[CompletionRequest], concurrency: int, server: RunningServer, model: str
) -> list[list[int]]:
    """Return the tokens of each request; every second one is streamed, and others leave meanwhile."""
    room = asyncio.Semaphore(concurrency)

    async def serve(number: int) -> list[int]:
        async with room:
            if number % LEAVING == 0:
                await client.leave_early(requests[number])
            return await client.tokens(requests[number], is_streamed=number % 2 == 0)

    async with connect(server.url, model, server.key) as client:
        return await asyncio.gather(*map(serve, range(len(requests))))
