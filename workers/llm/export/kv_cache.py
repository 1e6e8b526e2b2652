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

from workers.llm.models.attention import TILE, round_up
from workers.llm.quantized.low_bit_modules import from_cache, to_cache

BLOCK_TOKENS = (16, 32)  #: block sizes: whole tiles of the matrix units, so that no masked slot splits one


@dataclass(frozen=True)
class CacheLayout:
    """The mapping from the tokens of a row to slots of a cache tensor."""

    length: int  #: tokens that one row must hold
    block_tokens: int | None = None  #: size of the pool's blocks; None where a row is contiguous
    spare: int = 0  #: additional tokens that a row can hold

    @property
    def capacity(self) -> int:
        """Slots of one row: whole blocks, or whole tiles of the matrix units."""
        return round_up(self.length + self.spare, self.block_tokens or TILE)

    @property
    def blocks(self) -> int:
        """Blocks of one row, which are its entries in the block table."""
        assert self.block_tokens is not None
        return self.capacity // self.block_tokens

    def slots(self, batch: int) -> int:
        """Return the slots of a cache tensor for `batch` rows, the largest batch of the program.

        It is sized exactly: attention over a whole tensor reads it in place.
        """
        return batch * self.capacity

    def clear_of(self, sizes: Collection[int], batch: int, slot_bytes: int, layers: int) -> "CacheLayout":
        """Return the layout with as many spare tokens as keep the last layers' caches off the offsets `sizes` (bytes).

        IREE 3.13 merges two arguments of a function that are equal in its last call alone (the map of duplicates in
        IPOPass). The offset of a layer's cache is one argument and the size of the hidden states another; when they
        were equal, each layer wrote its keys to another place than they were read from. This can go with a release
        whose pass drops duplicates that are not equal in every call.
        """
        tensor_bytes = self.slots(batch) * slot_bytes
        if not {number * tensor_bytes for number in range(max(2 * layers - 4, 1), 2 * layers)} & set(sizes):
            return self
        spare = self.spare + (self.block_tokens or TILE)
        return replace(self, spare=spare).clear_of(sizes, batch, slot_bytes, layers)

    def places(self, positions: torch.Tensor, batch: int, table: torch.Tensor | None) -> torch.Tensor:
        """Return the slots `[batch * tokens]` of the tokens at `positions` `[1 or batch, tokens]`."""
        if self.block_tokens is None or table is None:
            first = torch.arange(batch)[:, None] * self.capacity
            return (first + positions).reshape(-1)
        positions = positions.expand(batch, -1)
        blocks = table.gather(1, positions // self.block_tokens)
        return (blocks * self.block_tokens + positions % self.block_tokens).reshape(-1)


def block_table(batch: int, blocks: int) -> np.ndarray[Any, Any]:
    """Return the table `[batch, blocks]` in which each row has its own blocks, all in ascending order."""
    return np.arange(batch * blocks, dtype=np.int64).reshape(batch, blocks)


@dataclass
class SlotCache:
    """Duck-types a transformers cache: the slots to write, and inside a traced block one rank's keys and values.

    `rows` are computed once, by the root: a constant that the blocks of all ranks share would leave IREE without an
    affinity for them.
    """

    rows: torch.Tensor  #: [batch * tokens], the slots of the new tokens
    batch: int  #: of the entry point
    layout: CacheLayout
    attends_to_row: bool  #: a decoded token does, a prompt attends to itself alone
    all_rows: torch.Tensor | None = None  #: [batch * capacity], slots a token may attend to; None: contiguous
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
        return self.layout.capacity if self.attends_to_row else query_length, 0

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values `[batch, kv_heads, tokens, head_dim]`; return those to attend to."""
        assert self.key is not None and self.value is not None
        key_scale, value_scale = self.scales or (None, None)
        self.key = self.key.index_put((self.rows,), to_cache(_flat(key), key_scale, self.key.dtype))
        self.value = self.value.index_put((self.rows,), to_cache(_flat(value), value_scale, self.value.dtype))
        if not self.attends_to_row:
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


def _flatten(cache: SlotCache) -> tuple[list[Any], tuple[int, CacheLayout, bool]]:
    return [cache.rows, cache.all_rows], (cache.batch, cache.layout, cache.attends_to_row)


def _unflatten(children: Any, context: tuple[int, CacheLayout, bool]) -> SlotCache:
    rows, all_rows = children
    return SlotCache(rows, *context, all_rows)


pytree.register_pytree_node(SlotCache, _flatten, _unflatten, serialized_type_name="haloctl.SlotCache")
