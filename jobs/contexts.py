"""The slots of a row's KV cache that a decode step reads. Standard library only: programs of stages use it too."""

from collections.abc import Iterable

#: rows and columns of the smallest matrix tile of CDNA and of tensor cores. IREE 3.13 uses no MFMA for attention
#: unless both query rows and keys are a multiple of it, and fails to compile for 8, 24, ... query rows in f16.
TILE = 16


def context_for(tokens: int, block_tokens: int | None = None) -> int:
    """Return the smallest context that holds so many tokens: whole blocks, or whole tiles where a row is contiguous."""
    size = block_tokens or TILE
    return -(-tokens // size) * size


def serving_contexts(cache_tokens: int, block_tokens: int) -> list[int]:
    """Return contexts that double from 64 slots on, up to the whole row; none of them is nearly the next."""
    capacity, contexts, context = context_for(cache_tokens, block_tokens), [], 64
    while 4 * context <= 3 * capacity:
        contexts.append(context)
        context *= 2
    return [*contexts, capacity]


def workload_contexts(prompt_tokens: Iterable[int], cache_tokens: int, block_tokens: int | None = None) -> list[int]:
    """Return a context for each prompt length: it holds the prompt and the tokens that fit behind the longest."""
    prompts = set(prompt_tokens)
    new_tokens = cache_tokens - max(prompts)
    return sorted({context_for(prompt + new_tokens, block_tokens) for prompt in prompts})
