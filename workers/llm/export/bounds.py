"""Arguments of a program that are out of bounds: they are moved into them, and their row's logits are not numbers.

So a row with a wrong argument neither reads nor writes what belongs to another row, and no wrong logits look right.
"""

from dataclasses import dataclass
from functools import reduce

import torch

from workers.llm.export.kv_cache import CacheLayout


@dataclass(frozen=True)
class BoundedRows:
    """The rows of a call, within bounds."""

    tokens: torch.Tensor  #: [batch, tokens]
    counts: torch.Tensor  #: [batch], how many of them each row has
    positions: torch.Tensor  #: [1 or batch, tokens], where they stand in their rows
    table: torch.Tensor | None  #: [batch, columns], the blocks of each row
    is_token: torch.Tensor | None  #: [batch, tokens], not what is behind; None: each row has one token
    is_valid: torch.Tensor  #: [batch], whether a row's arguments were within bounds


@dataclass(frozen=True)
class Bounds:
    """The limits of one entry point's arguments."""

    layout: CacheLayout
    vocab_size: int
    tokens: int  #: of a row in a call
    context: int | None  #: None in a prefill

    def apply(
        self,
        tokens: torch.Tensor,
        lengths: torch.Tensor | None,
        starts: torch.Tensor | None,
        table: torch.Tensor | None,
    ) -> BoundedRows:
        """Return the rows of a call; without `lengths` each has one token, without `starts` it begins at position 0.

        What is behind a row's tokens, or behind the blocks in use, may be anything.
        """
        batch, columns = tokens.shape[0], torch.arange(self.tokens)[None]
        counts = torch.ones(batch, dtype=torch.int64) if lengths is None else lengths.clamp(1, self.tokens)
        first = torch.zeros(batch, dtype=torch.int64) if starts is None else self._inside(starts, counts)
        is_token = None if lengths is None else columns < counts[:, None]
        known = tokens.clamp(0, self.vocab_size - 1)
        checks = [_all_used(known == tokens, counts)]
        checks += [] if lengths is None else [lengths == counts]
        checks += [] if starts is None else [starts == first]
        if table is not None and self.layout.block_tokens is not None:
            table, is_known = self._known_blocks(table)
            checks.append(_all_used(is_known, (first + counts - 1) // self.layout.block_tokens + 1))
        positions = columns if starts is None else (first[:, None] + columns).clamp(max=self._limit - 1)
        is_valid = reduce(torch.logical_and, checks)
        return BoundedRows(known, counts, positions, table, is_token, is_valid)

    @property
    def _limit(self) -> int:
        """Tokens that a row can have after a call."""
        return min(self.layout.length, self.context or self.tokens)

    def _inside(self, starts: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return torch.minimum(starts.clamp(min=0), self._limit - counts)

    def _known_blocks(self, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the table with block 0, which is nobody's, in place of blocks that are none; and which are some."""
        is_known = torch.logical_and(table > 0, table < self.layout.pool)
        return torch.where(is_known, table, 0), is_known


def _all_used(is_good: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return for each row whether its first `count` [batch] columns are all good."""
    is_unused = torch.arange(is_good.shape[1])[None] >= count[:, None]
    return torch.logical_or(is_good, is_unused).all(dim=1)
