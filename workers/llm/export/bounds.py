"""Arguments of a program that are out of bounds: they are moved into them, and their row's logits are not numbers.

So a row with a wrong argument neither reads nor writes what belongs to another row, and no wrong logits look right.
"""

from dataclasses import dataclass

import torch

from workers.llm.export.kv_cache import CacheLayout


@dataclass(frozen=True)
class Bounds:
    """The limits of one entry point's arguments."""

    layout: CacheLayout
    vocab_size: int
    bucket: int | None  #: of a prefill; None for a decode
    pool_blocks: int  #: of a paged cache

    def apply(
        self, tokens: torch.Tensor, second: torch.Tensor, table: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return the arguments within bounds, and which rows were valid `[batch]`.

        What is behind a prompt, or behind the blocks in use, may be anything.
        """
        least, most = (0, self.layout.length - 1) if self.bucket is None else (1, self.bucket)
        inside = second.clamp(least, most)
        is_valid = inside == second
        count = torch.ones_like(second) if self.bucket is None else second
        known = tokens.clamp(0, self.vocab_size - 1)
        is_valid = torch.logical_and(is_valid, _all_used(known == tokens, count))
        if table is not None and self.layout.block_tokens is not None:
            first = table[:, :1].clamp(0, self.pool_blocks - 1)
            is_inside = torch.logical_and(table >= 0, table < self.pool_blocks)
            last = inside if self.bucket is None else torch.full_like(inside, self.bucket - 1)
            is_valid = torch.logical_and(is_valid, _all_used(is_inside, last // self.layout.block_tokens + 1))
            table = torch.where(is_inside, table, first)
        return known, inside, table, is_valid


def _all_used(is_good: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return for each row whether its first `count` [batch] columns are all good."""
    is_unused = torch.arange(is_good.shape[1])[None] >= count[:, None]
    return torch.logical_or(is_good, is_unused).all(dim=1)
