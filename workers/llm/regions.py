"""Which part of a parameter a rank holds, as the rule for it says. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from workers.llm.sharding import Sharding
from workers.llm.split_styles import Rule, Shape

Segment = tuple[int, int]


@dataclass(frozen=True)
class Region:
    """The part of a parameter that a rank holds, in the parameter's matrix: all dimensions but the last are its rows.

    `segments` are start and stop along the rows (`dim` 0) or the columns (1), one after the other in the part;
    `is_zero` when it holds zeros instead.
    """

    shape: Shape
    segments: tuple[Segment, ...]
    dim: int = 0
    is_zero: bool = False


def region_of(sharding: Sharding, name: str, shape: Shape, rank: int) -> Region | None:
    """What `rank` holds of the parameter `name`, or None when it holds nothing of it."""
    rule, tp = sharding.rules[name], sharding.tp
    rows = math.prod(shape[:-1]) if len(shape) > 1 else shape[0]
    if rule is Rule.HOME:
        return Region(shape, ((0, rows),)) if rank == 0 else None
    if rule in (Rule.REPLICATED, Rule.ONCE):
        return Region(shape, ((0, rows),), is_zero=rule is Rule.ONCE and rank > 0)
    if rule is Rule.COLUMNS:
        segment = _part(0, shape[-1], tp, rank)
        return Region((*shape[:-1], segment[1] - segment[0]), (segment,), dim=1)
    segments = tuple(_row_segments(sharding, rule, shape, rank))
    held = sum(stop - start for start, stop in segments)
    return Region((held,) if len(shape) == 1 else (*shape[:-2], held // math.prod(shape[:-2]), shape[-1]), segments)


def _row_segments(sharding: Sharding, rule: Rule, shape: Shape, rank: int) -> Iterator[Segment]:
    """The rows of a rank, in the order in which it holds them; of stacked matrices, as experts are, those of each."""
    tp, heads, kv_heads = sharding.tp, sharding.heads, sharding.kv_heads
    kv_parts, kv_part = (tp, rank) if kv_heads % tp == 0 else (kv_heads, rank * kv_heads // tp)
    rows = shape[max(len(shape) - 2, 0)]
    for first in range(0, rows * math.prod(shape[:-2]), rows):
        if rule is Rule.ROWS:
            yield _part(first, rows, tp, rank)
        elif rule is Rule.KV_ROWS:
            yield _part(first, rows, kv_parts, kv_part)
        elif rule is Rule.HALF_ROWS:
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
