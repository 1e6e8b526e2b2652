"""The functions of a program: their names, arguments and results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from workers.llm.export.kv_cache import CacheLayout
from workers.llm.export.subgraphs import TensorMeta

_ROWS = ("tokens", "lengths", "starts", "block_table")
#: of each kind: the sizes in a function's name, beside its batch; its arguments and its results, in their order
_SIZES: dict[str, tuple[str, ...]] = {
    "prefill": ("prompt_tokens",),
    "decode": ("context",),
    "extend": ("prompt_tokens", "context"),
    "score": ("prompt_tokens", "context"),
    "sample": (),
}
_ARGUMENTS = {
    "prefill": ("tokens", "lengths", "block_table"),
    "decode": ("tokens", "positions", "block_table"),
    "extend": _ROWS,
    "score": (*_ROWS, "targets"),
    "sample": ("logits", "temperature", "top_k", "top_p", "seeds"),
}
_RESULTS = {
    "prefill": ("logits", "next_tokens"),
    "decode": ("logits", "next_tokens"),
    "extend": ("logits", "next_tokens"),
    "score": ("logprobs", "best_tokens", "best_logprobs"),
    "sample": ("next_tokens",),
}
_LETTERS = {"prompt_tokens": "t", "context": "c"}  #: in front of a size in a name


@dataclass(frozen=True)
class EntryPoint:
    """One function of the program, for one batch size."""

    kind: str
    batch: int
    tokens: int = 1  #: that one call takes for each row: the bucket of a prefill
    context: int | None = None  #: slots of its row that a token attends to; None in a prefill, which reads none

    @property
    def name(self) -> str:
        """Name of the function in the module."""
        sizes = (f"{_LETTERS[key]}{size}" for key, size in self.sizes.items())
        return "_".join([f"{self.kind}_bs{self.batch}", *sizes])

    @property
    def sizes(self) -> dict[str, int]:
        """What one call takes of each row, as config.json says it: `prompt_tokens` and `context`."""
        sizes = {"prompt_tokens": self.tokens, "context": self.context or 0}
        return {key: sizes[key] for key in _SIZES[self.kind]}

    @property
    def has_model(self) -> bool:
        """Whether the function runs the model."""
        return "tokens" in _ARGUMENTS[self.kind]

    def argument_names(self, layout: CacheLayout) -> list[str]:
        """Return the arguments' names, in order; there is no block table where rows are contiguous."""
        return [name for name in _ARGUMENTS[self.kind] if name != "block_table" or layout.block_tokens]

    def arguments(self, layout: CacheLayout, vocab_size: int, dtype: torch.dtype) -> dict[str, TensorMeta]:
        """Return the arguments by name, in order; `dtype` is the program's."""
        metas = {
            "logits": TensorMeta((self.batch, 1, vocab_size), dtype),
            "temperature": TensorMeta((self.batch,), torch.float32),
            "top_p": TensorMeta((self.batch,), torch.float32),
        }
        shapes = {"tokens": (self.batch, self.tokens), "targets": (self.batch, self.tokens)}
        if layout.block_tokens:
            shapes["block_table"] = (self.batch, layout.columns(self.context or layout.capacity))
        return {
            name: metas.get(name, TensorMeta(shapes.get(name, (self.batch,)), torch.int64))
            for name in self.argument_names(layout)
        }

    def results(self, vocab_size: int, dtype: torch.dtype) -> dict[str, TensorMeta]:
        """Return the results by name, in order; `dtype` is the program's."""
        metas = {
            "logits": TensorMeta((self.batch, 1, vocab_size), dtype),
            "next_tokens": TensorMeta((self.batch,), torch.int64),
            "logprobs": TensorMeta((self.batch, self.tokens), torch.float32),
            "best_tokens": TensorMeta((self.batch, self.tokens), torch.int64),
            "best_logprobs": TensorMeta((self.batch, self.tokens), torch.float32),
        }
        return {name: metas[name] for name in _RESULTS[self.kind]}


@dataclass(frozen=True)
class ServingSizes:
    """The sizes of the functions that a server calls beside those of the workload."""

    decode_batches: Sequence[int]
    prefill_batches: Sequence[int]
    chunk_tokens: int  #: of each row in one call of extend and score


def entry_points(batches: Iterable[int], prompt_tokens: Iterable[int], contexts: Iterable[int]) -> list[EntryPoint]:
    """Return the prefills and decodes of a workload."""
    batches = set(batches)
    return [
        *(EntryPoint("prefill", batch, tokens) for batch, tokens in product(batches, prompt_tokens)),
        *(EntryPoint("decode", batch, context=context) for batch, context in product(batches, contexts)),
    ]


def serving_entry_points(
    sizes: ServingSizes, prompt_tokens: Iterable[int], contexts: Sequence[int]
) -> list[EntryPoint]:
    """Return the functions that a server calls; `contexts` ascend to the capacity of a row.

    A part of a prompt attends to what is before it, so a context that only holds the part is of no use. Its matmuls
    cost more than its attention, so every second context will do; a step needs them all.
    """
    chunk = min(sizes.chunk_tokens, contexts[-1])
    longer = [context for context in contexts[::-2] if context > chunk] or [contexts[-1]]
    batches = {*sizes.decode_batches, *sizes.prefill_batches}
    return [
        *(EntryPoint("prefill", batch, tokens) for batch, tokens in product(sizes.prefill_batches, prompt_tokens)),
        *(EntryPoint("decode", batch, context=context) for batch, context in product(sizes.decode_batches, contexts)),
        *(EntryPoint("extend", batch, chunk, context) for batch, context in product(sizes.prefill_batches, longer)),
        *(EntryPoint("score", batch, chunk, contexts[-1]) for batch in sizes.prefill_batches),
        *(EntryPoint("sample", batch) for batch in batches),
    ]


def in_order(entries: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Return each entry point once: prefills first, then by size."""
    kinds = list(_SIZES)
    return sorted(
        set(entries), key=lambda entry: (kinds.index(entry.kind), entry.batch, entry.tokens, entry.context or 0)
    )
