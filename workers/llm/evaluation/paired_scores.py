"""How far two scores on the same items are apart, and how certain that is. Pure.

The standard error is that of the jackknife: the score without each item in turn, or without each of some groups of
items. It holds for any score that is computed from items, a mean or not; that of a difference leaves the same items out
on both sides, so that what makes an item hard does not count as chance. See B. Efron, "The Jackknife, the Bootstrap and
Other Resampling Plans", SIAM 1982, chapter 3. For means it is the usual standard error.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

MAX_GROUPS = 200  #: some scores take long to compute

Values = Sequence[Any]  #: what a measure says of each item
Aggregate = Callable[[list[Any]], float]  #: makes a score of them


def standard_error(score: Callable[[Sequence[int]], float], items: int) -> float | None:
    """Return the standard error of a score of the items with such indices; None where one item is all there is."""
    groups = min(items, MAX_GROUPS)
    if groups < 2:
        return None
    without = [score([index for index in range(items) if index % groups != group]) for group in range(groups)]
    mean = fmean(without)
    return math.sqrt((groups - 1) / groups * sum((each - mean) ** 2 for each in without))


def compare(aggregate: Aggregate, reference: Values, values: Values, *, is_lower_better: bool) -> dict[str, Any]:
    """Return a program's score, the reference's, by how much it is worse (`drop`), and the standard error of each."""

    def score_of(side: Values) -> Callable[[Sequence[int]], float]:
        return lambda kept: float(aggregate([side[index] for index in kept]))

    def drop(kept: Sequence[int]) -> float:
        rise = score_of(values)(kept) - score_of(reference)(kept)
        return rise if is_lower_better else 0.0 - rise

    items = len(values)
    statistics = {"value": score_of(values), "reference": score_of(reference), "drop": drop}
    report: dict[str, Any] = {"items": items}
    for name, statistic in statistics.items():
        report[name] = statistic(range(items))
        report[f"{name}_stderr"] = standard_error(statistic, items)
    return report
