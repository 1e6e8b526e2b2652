"""The functions of a program: their names, arguments and results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from workers.llm.export.kv_cache import CacheLayout
from workers.llm.export.subgraphs import TensorMeta

#: the sizes in a function's name beside its batch, by its kind; and the letters in front of them
_SIZES: dict[str, tuple[str, ...]] = {"prefill": ("prompt_tokens",), "decode": ("context",)}
_LETTERS = {"prompt_tokens": "t", "context": "c"}
#: arguments in their order; without a block table where the cache is contiguous
_ARGUMENTS = {
    "prefill": ("tokens", "lengths", "block_table"),
    "decode": ("tokens", "positions", "block_table"),
}
_RESULTS = {
    "prefill": ("logits", "next_tokens"),
    "decode": ("logits", "next_tokens"),
}


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
        return "_".join(
            [f"{self.kind}_bs{self.batch}", *(f"{_LETTERS[key]}{size}" for key, size in self.sizes.items())]
        )

    @property
    def sizes(self) -> dict[str, int]:
        """What one call takes of each row, as config.json says it: `prompt_tokens` and `context`."""
        sizes = {"prompt_tokens": self.tokens, "context": self.context or 0}
        return {key: sizes[key] for key in _SIZES[self.kind]}

    def arguments(self, layout: CacheLayout) -> dict[str, TensorMeta]:
        """Return the arguments by name, in order.

        `block_table` lists the blocks of each row, first to last.
        """
        context = self.context or layout.capacity
        shapes = {
            "tokens": (self.batch, self.tokens),
            "lengths": (self.batch,),
            "positions": (self.batch,),
            **({"block_table": (self.batch, layout.columns(context))} if layout.block_tokens else {}),
        }
        return {name: TensorMeta(shapes[name], torch.int64) for name in _ARGUMENTS[self.kind] if name in shapes}

    def results(self, vocab_size: int, dtype: torch.dtype) -> dict[str, TensorMeta]:
        """Return the results by name, in order; `dtype` is the program's."""
        metas = {
            "logits": TensorMeta((self.batch, 1, vocab_size), dtype),
            "next_tokens": TensorMeta((self.batch,), torch.int64),
        }
        return {name: metas[name] for name in _RESULTS[self.kind]}


def entry_points(batches: Iterable[int], prompt_tokens: Sequence[int], contexts: Sequence[int]) -> list[EntryPoint]:
    """Return a program's prefills and decodes, prefills first."""
    batches = sorted(set(batches))
    prefills = [EntryPoint("prefill", batch, tokens) for batch, tokens in product(batches, sorted(set(prompt_tokens)))]
    decodes = [EntryPoint("decode", *sizes) for sizes in product(batches, (1,), sorted(set(contexts)))]
    return [*prefills, *decodes]
