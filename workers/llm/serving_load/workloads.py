"""The requests that a server is checked and measured with: the same for the same seed."""

import random
from collections.abc import Sequence

from workers.llm.command_line import BadInput
from workers.llm.serving_load.client import CompletionRequest


def mixed_requests(
    tokens: Sequence[int], count: int, longest_prompt: int, most_tokens: int, seed: int
) -> list[CompletionRequest]:
    """Return pieces of a text, of all lengths, with as different numbers of new tokens. Raises BadInput."""
    if len(tokens) <= longest_prompt:
        raise BadInput(
            f"the text has {len(tokens)} tokens, prompts of {longest_prompt} are taken from it: give a longer"
        )
    chance = random.Random(seed)
    requests = []
    for _ in range(count):
        length = chance.randint(1, min(longest_prompt, most_tokens - 1))
        start = chance.randrange(len(tokens) - length)
        new_tokens = chance.randint(1, min(most_tokens - length, 2 * longest_prompt))
        requests.append(CompletionRequest(tuple(tokens[start : start + length]), new_tokens))
    return requests


def random_requests(
    vocab_size: int, count: int, prompt_tokens: int, new_tokens: int, seed: int
) -> list[CompletionRequest]:
    """Return prompts of random tokens, so that no two begin alike."""
    chance = random.Random(seed)
    return [
        CompletionRequest(tuple(chance.randrange(vocab_size) for _ in range(prompt_tokens)), new_tokens)
        for _ in range(count)
    ]


def poisson_arrivals_s(count: int, rate: float, seed: int) -> list[float]:
    """Return times of arrival, in seconds from the start, at a mean rate of requests per second."""
    chance, at, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        at += chance.expovariate(rate)
        arrivals.append(at)
    return arrivals
