"""Where the level of a series changes: binary segmentation by Student's t, as Hunter and Otava judge what they find.

Of all places where a part could be split the one with the largest t is taken, if it is larger than chance makes the
largest of that many (Bonferroni); then both parts are looked at. Ruptures and Otava find the same, and take 0.7 s and
a cloud's client libraries to import: tests hold this against ruptures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

ALPHA = 0.001  #: how often a series in which nothing changes is split
LEAST = 3  #: runs on either side: fewer are outliers


@dataclass(frozen=True)
class Split:
    """The first point of a new level, and how often chance would make such a one."""

    index: int
    p: float


def splits(values: Sequence[float], alpha: float = ALPHA) -> list[Split]:
    """In their order."""
    import numpy

    found = sorted(_found(numpy.asarray(values, dtype=float), 0, alpha), key=lambda split: split.index)
    bounds = [0, *(split.index for split in found), len(values)]
    parts = [values[begin:end] for begin, end in pairwise(bounds)]
    return [
        split
        for split, before, after in zip(found, parts, parts[1:], strict=False)
        if _best(numpy.asarray([*before, *after], dtype=float), [len(before)]).p <= alpha
    ]


def _found(values: Any, start: int, alpha: float) -> Iterator[Split]:
    """Among an array that begins at `start` of the whole."""
    places = range(LEAST, len(values) - LEAST + 1)
    if not places:
        return
    best = _best(values, list(places))
    if best.p <= alpha:
        yield Split(start + best.index, best.p)
        yield from _found(values[: best.index], start, alpha)
        yield from _found(values[best.index :], start + best.index, alpha)


def _best(values: Any, places: Sequence[int]) -> Split:
    """The place with the largest t, and its p-value among so many."""
    import numpy
    from scipy.special import stdtr

    count, at = len(values), numpy.asarray(places)
    centred = values - values.mean()
    sums = numpy.cumsum(centred)[at - 1]
    between = sums**2 * count / (at * (count - at))  # the sum of squares that the split explains
    best = int(between.argmax())
    within = max(float((centred**2).sum() - between[best]), 0.0)
    if within <= 1e-12 * float((values**2).sum()) or count < 3:
        return Split(int(at[best]), 0.0 if between[best] > within else 1.0)
    t = (float(between[best]) * (count - 2) / within) ** 0.5
    return Split(int(at[best]), min(1.0, 2 * len(at) * float(stdtr(count - 2, -t))))
