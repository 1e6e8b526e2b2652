"""The KV cache that the model's modules use while they are traced.

Keys and values of one layer live in one tensor each, `[slots, kv_heads, head_dim]`: IREE 3.13 updates a scatter along
dimension 0 in place (on a slice of a rank-5 cache its code generation fails). The slots of a row of the batch are
contiguous, or lie in blocks of a pool that a block table lists, as in serving engines.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from jobs.contexts import TILE, context_for
from workers.llm.quantized.low_bit_modules import from_cache, to_cache

BLOCK_TOKENS = (16, 32)  #: block sizes: whole tiles of the matrix units, so that no masked slot splits one


@dataclass(frozen=True)
class CacheLayout:
    """The mapping from the tokens of a row to slots of a cache tensor."""

    length: int  #: tokens that one row must hold
    rows: int  #: that must have room at the same time: the largest batch
    block_tokens: int | None = None  #: size of the pool's blocks; None where a row is contiguous
    pool_blocks: int | None = None  #: least number of blocks in the pool; None: as many as all rows need
    spare: int = 0  #: additional tokens: of each contiguous row, or of the pool

    @property
    def capacity(self) -> int:
        """Slots of one row: whole blocks, or whole tiles of the matrix units."""
        return context_for(self.length + (0 if self.block_tokens else self.spare), self.block_tokens)

    @property
    def blocks(self) -> int:
        """Blocks of one row."""
        return self.columns(self.capacity)

    @property
    def pool(self) -> int:
        """Blocks of the pool. Block 0 belongs to no row: it takes what is behind a row's tokens."""
        least = self.rows * self.blocks + 1 if self.pool_blocks is None else self.pool_blocks
        return least + self.columns(self.spare)

    @property
    def slots(self) -> int:
        """Slots of a cache tensor.

        Contiguous rows are sized exactly: attention over a whole tensor reads it in place.
        """
        return self.rows * self.capacity if self.block_tokens is None else self.pool * self.block_tokens

    def columns(self, tokens: int) -> int:
        """Return how many columns of a block table hold so many tokens, which are whole blocks."""
        assert self.block_tokens is not None
        return tokens // self.block_tokens

    def block_table(self, batch: int, context: int) -> np.ndarray[Any, Any]:
        """Return the first blocks `[batch, columns]` of each row, where all rows have blocks of their own, ascending.

        In a pool that is too small for all rows, some share blocks.
        """
        blocks = np.arange(batch * self.blocks, dtype=np.int64).reshape(batch, self.blocks)
        return 1 + blocks[:, : self.columns(context)] % (self.pool - 1)

    def clear_of(self, sizes: Collection[int], slot_bytes: int, layers: int) -> "CacheLayout":
        """Return the layout with as many spare tokens as keep the last layers' caches off the offsets `sizes` (bytes).

        IREE 3.13 merges two arguments of a function that are equal in its last call alone (the map of duplicates in
        IPOPass). The offset of a layer's cache is one argument and the size of the hidden states another; when they
        were equal, each layer wrote its keys to another place than they were read from. This can go with a release
        whose pass drops duplicates that are not equal in every call.
        """
        tensor_bytes = self.slots * slot_bytes
        if not {number * tensor_bytes for number in range(max(2 * layers - 4, 1), 2 * layers)} & set(sizes):
            return self
        spare = self.spare + (self.block_tokens or TILE)
        return replace(self, spare=spare).clear_of(sizes, slot_bytes, layers)

    def places(
        self,
        positions: torch.Tensor,
        batch: int,
        table: torch.Tensor | None,
        is_token: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the slots `[batch * tokens]` of the tokens at `positions` `[1 or batch, tokens]`.

        In a paged cache, those that `is_token` says are none lie in block 0.
        """
        if self.block_tokens is None or table is None:
            first = torch.arange(batch)[:, None] * self.capacity
            return (first + positions).reshape(-1)
        positions = positions.expand(batch, -1)
        blocks = table.gather(1, positions // self.block_tokens)
        blocks = blocks if is_token is None else torch.where(is_token, blocks, 0)
        return (blocks * self.block_tokens + positions % self.block_tokens).reshape(-1)


@dataclass
class SlotCache:
    """Duck-types a transformers cache: the slots to write, and inside a traced block one rank's keys and values.

    `rows` are computed once, by the root: a constant that the blocks of all ranks share would leave IREE without an
    affinity for them.
    """

    rows: torch.Tensor  #: [batch * tokens], the slots of the new tokens
    batch: int  #: of the entry point
    layout: CacheLayout
    context: int | None  #: slots of its row that a token may attend to; None: a prompt attends to itself alone
    all_rows: torch.Tensor | None = None  #: [batch * context], the slots themselves; None: the row's first
    key: torch.Tensor | None = None  #: sized for the largest batch, as `value` is
    value: torch.Tensor | None = None
    scales: tuple[torch.Tensor, torch.Tensor] | None = None  #: of fp8 keys and values
    positions: torch.Tensor | None = None  #: [1 or batch, tokens], known to the root, which makes the masks
    is_compileable: bool = field(default=False, repr=False)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Return 0: the model is given positions, and must not derive them from the cache."""
        return 0

    def get_max_cache_shape(self, *_: Any, **__: Any) -> int:
        """Return how many tokens one row can hold."""
        return self.layout.capacity

    def get_query_offset(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return the tokens' positions, from which the masks follow (`additive_mask`)."""
        assert self.positions is not None
        return self.positions

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        """Return the number of keys that a mask covers, and the position of the first."""
        return query_length if self.context is None else self.context, 0

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values `[batch, kv_heads, tokens, head_dim]`; return those to attend to."""
        assert self.key is not None and self.value is not None
        key_scale, value_scale = self.scales or (None, None)
        self.key = self.key.index_put((self.rows,), to_cache(_flat(key), key_scale, self.key.dtype))
        self.value = self.value.index_put((self.rows,), to_cache(_flat(value), value_scale, self.value.dtype))
        if self.context is None:
            return key, value
        return (
            from_cache(self._all_slots(self.key), key_scale, key.dtype),
            from_cache(self._all_slots(self.value), value_scale, value.dtype),
        )

    def _all_slots(self, stored: torch.Tensor) -> torch.Tensor:
        return self._used(stored).transpose(1, 2)

    def _used(self, stored: torch.Tensor) -> torch.Tensor:
        if self.all_rows is not None:
            return stored[self.all_rows].view(self.batch, -1, *stored.shape[1:])
        rows = stored[: self.batch * self.layout.capacity].view(self.batch, self.layout.capacity, *stored.shape[1:])
        return rows if self.context == self.layout.capacity else rows[:, : self.context]


def _flat(new: torch.Tensor) -> torch.Tensor:
    batch, heads, tokens, dim = new.shape
    return new.transpose(1, 2).reshape(batch * tokens, heads, dim)


def _flatten(cache: SlotCache) -> tuple[list[Any], tuple[int, CacheLayout, int | None]]:
    return [cache.rows, cache.all_rows], (cache.batch, cache.layout, cache.context)


def _unflatten(children: Any, context: tuple[int, CacheLayout, int | None]) -> SlotCache:
    rows, all_rows = children
    return SlotCache(rows, *context, all_rows)


pytree.register_pytree_node(SlotCache, _flatten, _unflatten, serialized_type_name="haloctl.SlotCache")
