"""The KV cache as the model's modules see it while they are traced.

Keys and values of one layer live in one tensor each, `[slots, kv_heads, head_dim]`: a scatter along dimension 0 is what
IREE 3.13 updates in place (on a slice of a rank-5 cache it fails code generation). The slots of a row of the batch
follow one another, or lie in blocks of a pool that a block table names, as serving engines have it.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from workers.llm.attention import TILE, round_up
from workers.llm.quantized_modules import from_cache, to_cache

BLOCK_TOKENS = (16, 32)  #: sizes of a block: whole tiles of the matrix units, so that no masked slot splits one


@dataclass(frozen=True)
class CacheLayout:
    """How tokens of a row find their slots; `block_tokens` of a pool's blocks, or None where a row is one piece."""

    length: int  #: tokens that one row is to hold
    block_tokens: int | None = None
    spare: int = 0  #: tokens more that it can hold

    @property
    def capacity(self) -> int:
        """Slots of a row: whole blocks, or whole tiles of the matrix units."""
        return round_up(self.length + self.spare, self.block_tokens or TILE)

    @property
    def blocks(self) -> int:
        """Entries of a row of the block table."""
        assert self.block_tokens is not None
        return self.capacity // self.block_tokens

    def slots(self, batch: int) -> int:
        """Slots of a cache tensor for so many rows.

        Just as many as the largest batch takes: attention to all of a tensor reads it where it lies.
        """
        return batch * self.capacity

    def clear_of(self, sizes: Collection[int], batch: int, slot_bytes: int, layers: int) -> "CacheLayout":
        """The layout, with spare tokens if need be, in which no last layer's cache begins at one of `sizes` (bytes).

        IREE 3.13 takes two arguments of a function for one when they are the same in its last call alone (IPOPass, its
        map of duplicates). Where a layer's cache begins in memory is such an argument, the size of the hidden states is
        too, and when they met, each layer wrote its keys to another place than it was to be read from. It can go with
        a release in which that pass forgets what is not so in every call.
        """
        tensor_bytes = self.slots(batch) * slot_bytes
        if not {number * tensor_bytes for number in range(max(2 * layers - 4, 1), 2 * layers)} & set(sizes):
            return self
        spare = self.spare + (self.block_tokens or TILE)
        return replace(self, spare=spare).clear_of(sizes, batch, slot_bytes, layers)

    def places(self, positions: torch.Tensor, batch: int, table: torch.Tensor | None) -> torch.Tensor:
        """Where in a cache tensor the tokens at `positions` `[1 or batch, tokens]` go: `[batch * tokens]`."""
        if self.block_tokens is None or table is None:
            first = torch.arange(batch)[:, None] * self.capacity
            return (first + positions).reshape(-1)
        positions = positions.expand(batch, -1)
        blocks = table.gather(1, positions // self.block_tokens)
        return (blocks * self.block_tokens + positions % self.block_tokens).reshape(-1)


def block_table(batch: int, blocks: int) -> np.ndarray[Any, Any]:
    """The plainest table `[batch, blocks]`: each row has its own blocks, and they follow one another."""
    return np.arange(batch * blocks, dtype=np.int64).reshape(batch, blocks)


@dataclass
class SlotCache:
    """Quacks like a transformers cache. Carries where to write; inside a traced block also that rank's K and V.

    `rows` `[batch * tokens]` are computed once, by the root: a constant that every rank's blocks share would leave IREE
    in doubt about where they run. `batch` is this entry point's, `key` and `value` are sized for the largest.
    `all_rows` `[batch * capacity]` are the slots of everything that a token may attend to; None where they are one
    piece.
    """

    rows: torch.Tensor
    batch: int
    layout: CacheLayout
    all_rows: torch.Tensor | None = None
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    scales: tuple[torch.Tensor, torch.Tensor] | None = None  #: of keys and values in fp8
    is_compileable: bool = field(default=False, repr=False)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Nothing that the model may count on: positions are given to it."""
        return 0

    def get_max_cache_shape(self, *_: Any, **__: Any) -> int:
        """Tokens that one row can hold."""
        return self.layout.capacity

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Length and offset of what a mask covers; our masks are made already."""
        return self.layout.capacity, 0

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, `[batch, kv_heads, tokens, head_dim]`, and return what to attend to.

        A prompt attends to itself alone; a decoded token to the whole row.
        """
        assert self.key is not None and self.value is not None
        tokens = key.shape[2]
        key_scale, value_scale = self.scales or (None, None)
        self.key = self.key.index_put((self.rows,), to_cache(_flat(key), key_scale, self.key.dtype))
        self.value = self.value.index_put((self.rows,), to_cache(_flat(value), value_scale, self.value.dtype))
        if tokens > 1:
            return key, value
        return (
            from_cache(self._all_slots(self.key), key_scale, key.dtype),
            from_cache(self._all_slots(self.value), value_scale, value.dtype),
        )

    def _all_slots(self, stored: torch.Tensor) -> torch.Tensor:
        capacity = self.layout.capacity
        used = stored[: self.batch * capacity] if self.all_rows is None else stored[self.all_rows]
        return used.view(self.batch, capacity, *stored.shape[1:]).transpose(1, 2)


def _flat(new: torch.Tensor) -> torch.Tensor:
    batch, heads, tokens, dim = new.shape
    return new.transpose(1, 2).reshape(batch * tokens, heads, dim)


def _flatten(cache: SlotCache) -> tuple[list[Any], tuple[int, CacheLayout]]:
    return [cache.rows, cache.all_rows], (cache.batch, cache.layout)


def _unflatten(children: Any, context: tuple[int, CacheLayout]) -> SlotCache:
    rows, all_rows = children
    batch, layout = context
    return SlotCache(rows, batch, layout, all_rows)


pytree.register_pytree_node(SlotCache, _flatten, _unflatten, serialized_type_name="haloctl.SlotCache")
