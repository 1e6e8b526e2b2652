"""The part of a parameter that a rank holds by the parameter's rule. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from workers.llm.sharding.plan import Sharding
from workers.llm.sharding.split_styles import Shape, SplitRule

Segment = tuple[int, int]


@dataclass(frozen=True)
class ShardRegion:
    """The part of a parameter that a rank holds, in its matrix: all dimensions but the last are rows."""

    shape: Shape
    segments: tuple[Segment, ...]  #: start and stop in the whole matrix, contiguous in the part
    dim: int = 0  #: that the segments lie along: 0 for rows, 1 for columns
    is_zero: bool = False  #: the part holds zeros instead


def shard_region_of(sharding: Sharding, name: str, shape: Shape, rank: int) -> ShardRegion | None:
    """Return what `rank` holds of the parameter `name`, or None when it holds nothing of it."""
    rule, tp = sharding.rules[name], sharding.tp
    rows = math.prod(shape[:-1]) if len(shape) > 1 else shape[0]
    if rule is SplitRule.HOME:
        return ShardRegion(shape, ((0, rows),)) if rank == 0 else None
    if rule in (SplitRule.REPLICATED, SplitRule.ONCE):
        return ShardRegion(shape, ((0, rows),), is_zero=rule is SplitRule.ONCE and rank > 0)
    if rule is SplitRule.COLUMNS:
        segment = _part(0, shape[-1], tp, rank)
        return ShardRegion((*shape[:-1], segment[1] - segment[0]), (segment,), dim=1)
    segments = tuple(_row_segments(sharding, rule, shape, rank))
    held_rows = sum(stop - start for start, stop in segments)
    return ShardRegion(
        (held_rows,) if len(shape) == 1 else (*shape[:-2], held_rows // math.prod(shape[:-2]), shape[-1]), segments
    )


def _row_segments(sharding: Sharding, rule: SplitRule, shape: Shape, rank: int) -> Iterator[Segment]:
    """Yield the rows of a rank, in the order in which it holds them; stacked matrices (experts) have rows of each."""
    tp, heads, kv_heads = sharding.tp, sharding.heads, sharding.kv_heads
    kv_parts, kv_part = (tp, rank) if kv_heads % tp == 0 else (kv_heads, rank * kv_heads // tp)
    rows = shape[max(len(shape) - 2, 0)]
    for first in range(0, rows * math.prod(shape[:-2]), rows):
        if rule is SplitRule.ROWS:
            yield _part(first, rows, tp, rank)
        elif rule is SplitRule.KV_ROWS:
            yield _part(first, rows, kv_parts, kv_part)
        elif rule is SplitRule.HALF_ROWS:
            yield _part(first, rows // 2, tp, rank)
            yield _part(first + rows // 2, rows // 2, tp, rank)
        else:
            head = rows // (heads + 2 * kv_heads)
            keys = first + heads * head
            yield _part(first, heads * head, tp, rank)
            yield _part(keys, kv_heads * head, kv_parts, kv_part)
            yield _part(keys + kv_heads * head, kv_heads * head, kv_parts, kv_part)


def _part(first: int, count: int, parts: int, part: int) -> Segment:
    size = count // parts
    return first + part * size, first + (part + 1) * size
