"""Two sets of runs, paired by device, workload and metric, and what is to be said of each pair. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from statistics import geometric_mean, median
from typing import Any

from db.runs import Run
from jobs.errors import BadSetting
from jobs.metrics import METRICS
from orchestrator.deciding.intervals import (
    ALPHA,
    Estimate,
    Sides,
    false_discovery_limit,
    of_pairs,
    of_strata,
    runs_needed,
)
from orchestrator.deciding.noise import Noises
from orchestrator.repeating.agreement import FIGURES

MARGIN_PERCENT = 2.0
SPEEDS = frozenset({"ms", "s", "tokens/s"})  #: units of what is faster or slower, rather than better or worse
Key = tuple[Any, ...]


class Verdict(StrEnum):
    """What is said of the new beside the old."""

    FASTER = "faster"
    SLOWER = "slower"
    BETTER = "better"  #: of what is no speed
    WORSE = "worse"
    EQUIVALENT = "equivalent"  #: the interval lies within the margin
    INCONCLUSIVE = "inconclusive"


DIFFERENT = frozenset({Verdict.FASTER, Verdict.SLOWER, Verdict.BETTER, Verdict.WORSE})
BAD = frozenset({Verdict.SLOWER, Verdict.WORSE})


@dataclass(frozen=True)
class Compared:
    """A metric in one workload, on the devices that both sides were measured on."""

    old_variant: str
    new_variant: str
    target: str
    metric: str
    unit: str
    workload: tuple[tuple[str, int], ...]
    places: tuple[str, ...]
    old: float  #: geometric mean of the runs' medians; of a figure that follows from what was computed their median
    new: float
    old_runs: int
    new_runs: int
    estimate: Estimate | None  #: None: of a figure that follows from what was computed, or of runs in different places
    verdict: Verdict = Verdict.INCONCLUSIVE
    more: int = 0  #: how many runs a side would decide it, beyond those that there are
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as large the new is as the old."""
        if self.estimate is not None:
            return self.estimate.ratio
        return self.new / self.old if self.old else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where that lies."""
        return self.estimate.interval if self.estimate else None


def compare(
    old: Sequence[Run], new: Sequence[Run], noises: Noises, margin_percent: float, *, each_device: bool = False
) -> list[Compared]:
    """Every metric and workload that both were measured in; raises BadSetting where a side is several variants."""
    old, new = _apart(old, new)
    key = _key(old, new)
    sides = [_grouped(runs, key) for runs in (old, new)]
    cells = []
    for name, found in sides[0].items():
        if name in sides[1]:
            cells += _cells(found, sides[1][name], noises, each_device=each_device)
    return judged(cells, margin_percent)


def shared(both: Sequence[Sequence[Run]]) -> list[tuple[Run, Run]]:
    """The newest run of each side, for every metric and workload that both were measured in; they may be the same."""
    old, new = both if is_itself(*both) else _apart(*both)
    key = _key(old, new)
    grouped = [_grouped(runs, key) for runs in (old, new)]
    return [
        (max(found, key=_time), max(grouped[1][name], key=_time))
        for name, found in grouped[0].items()
        if name in grouped[1]
    ]


def is_itself(old: Sequence[Run], new: Sequence[Run]) -> bool:
    """Whether two sides are the same runs."""
    return {run.attempt for run in old} == {run.attempt for run in new}


def _time(run: Run) -> datetime:
    return run.at


def compare_turns(
    pairs: Mapping[Key, Sequence[tuple[Run, Run]]], noises: Noises, margin_percent: float, alpha: float
) -> list[Compared]:
    """Of runs taken in turns on one device: by metric and workload, each a pair (old, new)."""
    cells = []
    for turns in pairs.values():
        told = _told([old for old, _ in turns], [new for _, new in turns])
        if told.metric not in FIGURES and all(min(old.median, new.median) > 0 for old, new in turns):
            logs = [math.log(new.median / old.median) for old, new in turns]
            told = replace(told, estimate=of_pairs(logs, noises.of(*turns[0], beside=len(logs) - 1), alpha))
        cells.append(told)
    return judged(cells, margin_percent, alpha)


def judged(cells: Sequence[Compared], margin_percent: float, alpha: float = ALPHA) -> list[Compared]:
    """With verdicts: of many at once, no more than a share of `alpha` of those called different are so by chance."""
    ps = [cell.estimate.p for cell in cells if cell.estimate]
    limit = false_discovery_limit(ps, alpha) if ps else 0.0
    return [_judged(cell, math.log1p(margin_percent / 100), limit, alpha, len(ps)) for cell in cells]


def _judged(cell: Compared, margin: float, limit: float, alpha: float, count: int) -> Compared:
    if cell.metric in FIGURES:
        close = FIGURES[cell.metric]
        is_same = math.isclose(cell.old, cell.new, rel_tol=close.relative, abs_tol=close.absolute)
        return replace(cell, verdict=Verdict.EQUIVALENT if is_same else _direction(cell, cell.new - cell.old))
    found = cell.estimate
    if found is None:
        return cell
    if -margin <= found.low and found.high <= margin:
        return replace(cell, verdict=Verdict.EQUIVALENT)
    if found.p <= limit and not found.low <= 0 <= found.high:
        return replace(cell, verdict=_direction(cell, found.log))
    fewer = min(cell.old_runs, cell.new_runs)
    more = max(runs_needed(found, margin, alpha) - fewer, 1)
    needs = f"needs {more} more {'run' if more == 1 else 'runs'} of each"
    by_chance = "" if found.low <= 0 <= found.high else f"may be chance among {count} comparisons: "
    return replace(cell, more=more, why=f"{by_chance}{needs}")


def _direction(cell: Compared, difference: float) -> Verdict:
    is_better = (difference < 0) == METRICS[cell.metric].is_lower_better
    if cell.unit in SPEEDS:
        return Verdict.FASTER if is_better else Verdict.SLOWER
    return Verdict.BETTER if is_better else Verdict.WORSE


def _apart(old: Sequence[Run], new: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """A run that both sides name is one of the side that names fewer."""
    attempts = [{run.attempt for run in side} for side in (old, new)]
    if old and is_itself(old, new):
        raise BadSetting("A, B", "both name the same runs: there is nothing to compare, but with --run")
    shared = attempts[0] & attempts[1]
    keeps_old = len(attempts[0]) <= len(attempts[1])
    left = [[run for run in side if run.attempt not in shared] for side in (old, new)]
    return (list(old), left[1]) if keeps_old else (left[0], list(new))


def _key(old: Sequence[Run], new: Sequence[Run]) -> tuple[str, ...]:
    """The axes that must agree: those whose values the two sides have some of in common. The others are compared."""
    axes = ("model", *(old[0].axes if old else ()))
    kinds = [{_values(run, axes) for run in side} for side in (old, new)]
    values = [[{kind[index] for kind in side} for index in range(len(axes))] for side in kinds]
    return tuple(name for name, *both in zip(axes, *values, strict=True) if both[0] & both[1])


def _values(run: Run, axes: Sequence[str]) -> tuple[Any, ...]:
    """In their order."""
    found = run.axes
    return tuple([run.model if name == "model" else found[name] for name in axes])


def _grouped(runs: Sequence[Run], key: Sequence[str]) -> dict[Key, list[Run]]:
    found: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        found[(*_values(run, key), run.target, run.metric, run.workload)].append(run)
    return found


def _cells(old: list[Run], new: list[Run], noises: Noises, *, each_device: bool) -> list[Compared]:
    for letter, side in (("A", old), ("B", new)):
        names = sorted({run.variant.partition("@")[0] for run in side})
        if len(names) > 1:
            more = " and others" if len(names) > 2 else ""
            raise BadSetting(letter, f"is {names[0]}, {names[1]}{more}: name one of them with variant:NAME")
    places = sorted({run.place for run in old} & {run.place for run in new})
    if not places:
        where = [", ".join(sorted({run.place for run in side})[:2]) for side in (old, new)]
        told = _told(old, new)
        return [replace(told, places=(), why=f"no device has both: A ran on {where[0]}, B on {where[1]}")]
    groups = [[place] for place in places] if each_device else [places]
    return [_cell(old, new, noises, group) for group in groups]


def _cell(old: list[Run], new: list[Run], noises: Noises, places: Sequence[str]) -> Compared:
    old, new = ([run for run in side if run.place in places] for side in (old, new))
    told = _told(old, new)
    if told.metric in FIGURES:
        return told
    if min(run.median for run in (*old, *new)) <= 0:
        return replace(told, why="not above 0: it has no ratio")
    strata: list[Sides] = [
        ([math.log(run.median) for run in old if run.place == place],
         [math.log(run.median) for run in new if run.place == place])
        for place in places
    ]  # fmt: skip
    own = len(old) + len(new) - 2 * len(places)
    return replace(told, estimate=of_strata(strata, noises.of(old[0], new[0], beside=own)))


def _middle(runs: Sequence[Run]) -> float:
    """Such that on one device B / A is their ratio."""
    values = [run.median for run in runs]
    return median(values) if runs[0].metric in FIGURES or min(values) <= 0 else geometric_mean(values)


def _told(old: Sequence[Run], new: Sequence[Run]) -> Compared:
    first, other = old[0], new[0]
    return Compared(
        old_variant=first.variant,
        new_variant=other.variant,
        target=first.target,
        metric=first.metric,
        unit=first.unit,
        workload=first.workload,
        places=tuple(sorted({run.place for run in (*old, *new)})),
        old=_middle(old),
        new=_middle(new),
        old_runs=len(old),
        new_runs=len(new),
        estimate=None,
    )
