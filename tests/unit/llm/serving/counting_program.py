"""A program whose next token is a hash of all that it finds in the cache: any wrong slot changes all that follows."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.llm.serving.batching import CallShape
from workers.llm.serving.blocks import NOBODYS_BLOCK
from workers.llm.serving.paged_program import PagedProgram, Results

VOCAB = 97


def next_token(tokens: Iterable[int]) -> int:
    """Return the token that follows others."""
    return _number(tokens) % VOCAB


def logprob(tokens: Sequence[int], target: int) -> float:
    """Return what stands for the log probability of a token after others."""
    return -(_number((*tokens, target)) % 1000) / 100


def _number(tokens: Iterable[int]) -> int:
    return int.from_bytes(hashlib.blake2b(repr([int(token) for token in tokens]).encode(), digest_size=8).digest())


class ReadResults(Results):
    def __init__(self, values: dict[str, NDArray[Any]]) -> None:
        self._values = values

    def buffer(self, name: str) -> Any:
        return self._values[name]

    def read(self, name: str) -> NDArray[Any]:
        return self._values[name]


class CountingProgram(PagedProgram):
    def __init__(self, shapes: Sequence[CallShape], block_tokens: int, pool_blocks: int, length: int) -> None:
        self.program = {"block_tokens": block_tokens, "cache_length": length}
        self._shapes, self._block_tokens, self._pool_blocks = list(shapes), block_tokens, pool_blocks
        self._slots = np.full(pool_blocks * block_tokens, -1, np.int64)

    @property
    def shapes(self) -> list[CallShape]:
        return self._shapes

    @property
    def pool_blocks(self) -> int:
        return self._pool_blocks

    def table_blocks(self, shape: CallShape) -> int:
        return (shape.tokens if shape.kind == "prefill" else shape.context) // self._block_tokens

    def run(self, shape: CallShape, **inputs: Any) -> Results:
        starts = inputs["positions" if shape.kind == "decode" else "starts"] if shape.kind != "prefill" else None
        written: set[int] = set()
        for row in range(shape.batch):
            self._write(
                inputs["block_table"][row], inputs["tokens"][row], 0 if starts is None else starts[row], written
            )
        results: dict[str, list[Any]] = {"next_tokens": [], "logprobs": [], "best_tokens": [], "best_logprobs": []}
        for row in range(shape.batch):
            start = 0 if starts is None else int(starts[row])
            count = 1 if shape.kind == "decode" else int(inputs["lengths"][row])
            assert start + count <= (shape.tokens if shape.kind == "prefill" else shape.context)
            seen = self._read(inputs["block_table"][row], start + count)
            results["next_tokens"].append(next_token(seen))
            if shape.kind == "score":
                targets = inputs["targets"][row]
                ends = range(start + 1, start + shape.tokens + 1)
                scores = [logprob(seen[:end], targets[end - start - 1]) for end in ends]
                results["logprobs"].append(scores)
                results["best_tokens"].append([next_token(seen[:end]) for end in ends])
                results["best_logprobs"].append([0.0] * shape.tokens)
        return ReadResults({name: np.array(values) for name, values in results.items()})

    def _slot(self, table: NDArray[np.int64], position: int) -> int:
        index = position // self._block_tokens
        block = int(table[index]) if index < len(table) else NOBODYS_BLOCK
        return block * self._block_tokens + position % self._block_tokens

    def _write(self, table: NDArray[np.int64], tokens: NDArray[np.int64], start: int, written: set[int]) -> None:
        for offset, token in enumerate(tokens):
            slot = self._slot(table, int(start) + offset)
            assert slot < self._block_tokens or slot not in written, "two rows write to one slot"
            written.add(slot)
            self._slots[slot] = token

    def _read(self, table: NDArray[np.int64], end: int) -> list[int]:
        return [int(self._slots[self._slot(table, position)]) for position in range(end)]
