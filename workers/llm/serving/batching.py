"""Covering rows with calls of a program's entry points at the least cost."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class CallShape:
    """The shape of an entry point."""

    kind: str  #: prefill, extend, score or decode
    batch: int
    tokens: int  #: of each row that one call takes
    context: int  #: slots of a row that it reads, its own tokens included

    @property
    def size(self) -> int:
        """What a row must not exceed: tokens of a prompt, or the end of its tokens in the cache."""
        return self.tokens if self.kind == "prefill" else self.context


Calls = tuple[tuple[CallShape, int], ...]  #: shapes, each with the number of rows that it takes


class CallCosts:
    """What each entry point takes, in seconds, as it was measured: whether padding is dear depends on the device."""

    def __init__(self, seconds: Mapping[CallShape, float]) -> None:
        self._kinds = {kind: _Kind(seconds, kind) for kind in {shape.kind for shape in seconds}}

    def shapes(self, kind: str) -> list[CallShape]:
        """Return all shapes of a kind, the smallest sizes first."""
        return self._kinds[kind].shapes

    def largest(self, kind: str) -> int:
        """Return the largest size that entry points of a kind take; 0 without any."""
        return self._kinds[kind].sizes[-1] if kind in self._kinds else 0

    def tokens(self, kind: str) -> int:
        """Return how many tokens of a row one call of a kind takes; 0 without any."""
        return self._kinds[kind].tokens if kind in self._kinds else 0

    def cover(self, kind: str, sizes: Sequence[int]) -> Calls:
        """Return the cheapest calls for rows of these sizes, which descend; the first call takes the first rows."""
        return self._kinds[kind].cover(sizes)[1] if sizes else ()

    def cost_s(self, kind: str, sizes: Sequence[int]) -> float:
        """Return what these calls take."""
        return self._kinds[kind].cover(sizes)[0]


class _Kind:
    """The entry points of one kind; what each step of an engine asks for is computed once."""

    def __init__(self, seconds: Mapping[CallShape, float], kind: str) -> None:
        self.shapes = sorted(
            (shape for shape in seconds if shape.kind == kind), key=lambda shape: (shape.size, shape.batch)
        )
        self.sizes = sorted({shape.size for shape in self.shapes})
        self.tokens = max(shape.tokens for shape in self.shapes)
        self._cover = _covering(tuple((shape, seconds[shape]) for shape in self.shapes))

    def cover(self, sizes: Sequence[int]) -> tuple[float, Calls]:
        """Return the least cost of rows of these sizes, and its calls."""
        return self._cover(tuple(self.sizes[bisect_left(self.sizes, size)] for size in sizes))


def _covering(costs: tuple[tuple[CallShape, float], ...]) -> Callable[[tuple[int, ...]], tuple[float, Calls]]:
    @lru_cache(maxsize=4096)
    def cover(sizes: tuple[int, ...]) -> tuple[float, Calls]:
        best: list[tuple[float, Calls]] = [(0.0, ())]  # of the last rows, the shortest first
        for start in range(len(sizes) - 1, -1, -1):
            options = [
                (cost_s + best[-taken][0], shape, taken)
                for shape, cost_s in costs
                if shape.size >= sizes[start]
                for taken in [min(shape.batch, len(sizes) - start)]
            ]
            total_s, shape, taken = min(options, key=lambda option: option[0])
            best.append((total_s, ((shape, taken), *best[-taken][1])))
        return best[-1]

    return cover
