"""The KV cache as the model's modules see it while they are traced.

Keys and values of one layer live in one tensor each, `[batch * capacity, kv_heads, head_dim]`: a scatter along
dimension 0 is what IREE 3.13 updates in place (on a slice of a rank-5 cache it fails code generation).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass
class SlotCache:
    """Quacks like a transformers cache. Carries where to write; inside a traced block also that rank's K and V.

    `rows` `[batch * tokens]` are computed once, by the root: a constant that every rank's blocks share would leave IREE
    in doubt about where they run. `batch` is this entry point's, `key` and `value` are sized for the largest.
    """

    rows: torch.Tensor
    batch: int
    capacity: int
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    is_compileable: bool = field(default=False, repr=False)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Nothing that the model may count on: positions are given to it."""
        return 0

    def get_max_cache_shape(self, *_: Any, **__: Any) -> int:
        """Tokens that one row can hold."""
        return self.capacity

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Length and offset of what a mask covers; our masks are made already."""
        return self.capacity, 0

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values, `[batch, kv_heads, tokens, head_dim]`, and return what to attend to.

        A prompt attends to itself alone; a decoded token to the whole row.
        """
        assert self.key is not None and self.value is not None
        tokens = key.shape[2]
        self.key = self.key.index_put((self.rows,), _flat(key))
        self.value = self.value.index_put((self.rows,), _flat(value))
        if tokens > 1:
            return key, value
        return self._all_slots(self.key), self._all_slots(self.value)

    def _all_slots(self, stored: torch.Tensor) -> torch.Tensor:
        used = stored[: self.batch * self.capacity]
        return used.view(self.batch, self.capacity, *stored.shape[1:]).transpose(1, 2)


def _flat(new: torch.Tensor) -> torch.Tensor:
    batch, heads, tokens, dim = new.shape
    return new.transpose(1, 2).reshape(batch * tokens, heads, dim)


def _flatten(cache: SlotCache) -> tuple[list[Any], tuple[int, int]]:
    return [cache.rows], (cache.batch, cache.capacity)


def _unflatten(children: Any, context: tuple[int, int]) -> SlotCache:
    (rows,) = children
    return SlotCache(rows, *context)


pytree.register_pytree_node(SlotCache, _flatten, _unflatten, serialized_type_name="haloctl.SlotCache")
