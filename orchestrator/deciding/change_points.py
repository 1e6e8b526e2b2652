"""Where the level of a series changes: binary segmentation by Student's t, as Hunter and Otava judge what they find.

Of all places where a part could be split the one with the largest t is taken, if it is larger than chance makes the
largest of that many (Bonferroni); then both parts are looked at. Ruptures and Otava find the same, and take 0.8 s and
a cloud's client libraries to import, more than all else that a trend takes: tests hold this against ruptures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

ALPHA = 0.001  #: how often a series in which nothing changes is split
LEAST = 3  #: runs on either side: fewer are outliers


@dataclass(frozen=True)
class Split:
    """The first point of a new level, and how often chance would make such a one."""

    index: int
    p: float


def splits(values: Sequence[float], alpha: float = ALPHA) -> list[Split]:
    """In their order."""
    found = sorted(_found(values, 0, alpha), key=lambda split: split.index)
    bounds = [0, *(split.index for split in found), len(values)]
    parts = [values[begin:end] for begin, end in pairwise(bounds)]
    return [
        split
        for split, before, after in zip(found, parts, parts[1:], strict=False)
        if _best([*before, *after], [len(before)]).p <= alpha
    ]


def _found(values: Sequence[float], start: int, alpha: float) -> Iterator[Split]:
    """Among values that begin at `start` of the whole."""
    places = range(LEAST, len(values) - LEAST + 1)
    if not places:
        return
    best = _best(values, places)
    if best.p <= alpha:
        yield Split(start + best.index, best.p)
        yield from _found(values[: best.index], start, alpha)
        yield from _found(values[best.index :], start + best.index, alpha)


def _best(values: Sequence[float], places: Sequence[int]) -> Split:
    """The place with the largest t, and its p-value among so many."""
    count, mean = len(values), fmean(values)
    centred = [value - mean for value in values]
    sums = list(accumulate(centred))
    between = [sums[at - 1] ** 2 * count / (at * (count - at)) for at in places]  # squares that a split explains
    most = max(between)
    at = places[between.index(most)]
    within = max(sum(value * value for value in centred) - most, 0.0)
    if within <= 1e-12 * sum(value * value for value in values) or count < 3:
        return Split(at, 0.0 if most > within else 1.0)
    from scipy.special import stdtr

    t = (most * (count - 2) / within) ** 0.5
    return Split(at, min(1.0, 2 * len(places) * float(stdtr(count - 2, -t))))
