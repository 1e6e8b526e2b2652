"""Where the level of a series changes: binary segmentation by Student's t, tested as Hunter and Otava do.

Of all places where a segment could be split the one with the largest t is taken, if that is larger than chance makes
the largest of that many (Bonferroni); then both parts are searched (Scott and Knott, Biometrics 30, 1974). Hunter:
Fleming, Kołaczkowski et al., Hunter: using change point detection to hunt for performance regressions, ICPE 2023.

Our own code: ruptures takes 1.4 s of CPU time to import, more than all else that `haloctl trend` does, and Otava brings
a cloud's client libraries. Tests hold the result against ruptures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

ALPHA = 0.001  #: how often a series in which nothing changes is split
MIN_RUNS = 3  #: on either side: fewer are outliers


@dataclass(frozen=True)
class ChangePoint:
    """The first point of a new level, and how often chance would make such a one."""

    index: int
    p_value: float


def find_change_points(values: Sequence[float], alpha: float = ALPHA) -> list[ChangePoint]:
    """Return the change points in their order; each is tested again between its two neighbours."""
    candidates = sorted(_segment(values, 0, alpha), key=lambda candidate: candidate.index)
    bounds = [0, *(candidate.index for candidate in candidates), len(values)]
    levels = [values[begin:end] for begin, end in pairwise(bounds)]
    return [
        candidate
        for candidate, (before, after) in zip(candidates, pairwise(levels), strict=True)
        if _best_split([*before, *after], [len(before)]).p_value <= alpha
    ]


def _segment(values: Sequence[float], start: int, alpha: float) -> Iterator[ChangePoint]:
    """Split values, which begin at `start` of the whole, and both parts again."""
    places = range(MIN_RUNS, len(values) - MIN_RUNS + 1)
    if not places:
        return
    best = _best_split(values, places)
    if best.p_value <= alpha:
        yield ChangePoint(start + best.index, best.p_value)
        yield from _segment(values[: best.index], start, alpha)
        yield from _segment(values[best.index :], start + best.index, alpha)


def _best_split(values: Sequence[float], places: Sequence[int]) -> ChangePoint:
    """Return the place with the largest t, and its p-value among so many."""
    count, mean = len(values), fmean(values)
    centred = [value - mean for value in values]
    sums = list(accumulate(centred))
    explained = [sums[place - 1] ** 2 * count / (place * (count - place)) for place in places]  # sum of squares
    most = max(explained)
    place = places[explained.index(most)]
    residual = max(sum(value * value for value in centred) - most, 0.0)
    if residual <= 1e-12 * sum(value * value for value in values) or count < 3:
        return ChangePoint(place, 0.0 if most > residual else 1.0)
    from scipy.special import stdtr

    t = (most * (count - 2) / residual) ** 0.5
    return ChangePoint(place, min(1.0, 2 * len(places) * float(stdtr(count - 2, -t))))
