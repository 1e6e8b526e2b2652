"""A metric over time on one device: its levels, where they change, and what changed with them. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from db.reads.runs import MeasuredRun, differing_variables
from jobs.digest import differences
from orchestrator.analysis.change_points import find_change_points
from orchestrator.analysis.noise import Noise, learn_noise
from orchestrator.analysis.verdicts import DETERMINISTIC, Verdict, direction

NEARBY_RUNS = 2  #: noise may show a change so many runs sooner or later than it came
MAX_SUSPECTS = 5
NO_SUSPECT = "nothing that is recorded changed: neither program, toolchain, variables, driver nor node"
SHORT_DIGEST = 8  #: characters


@dataclass(frozen=True)
class LevelChange:
    """A change of a series' level."""

    index: int  #: of the first run of the new level
    at: datetime
    old: float  #: medians of both levels
    new: float
    p_value: float
    verdict: Verdict
    between: tuple[MeasuredRun, MeasuredRun]  #: neighbours between which the suspects changed
    suspects: tuple[str, ...] = ()  #: in words, the likeliest first

    @property
    def ratio(self) -> float | None:
        """New divided by old."""
        return self.new / self.old if self.old else None

    @property
    def percent_text(self) -> str:
        """`+4.5%`."""
        return "" if self.ratio is None else f"{100 * (self.ratio - 1):+.1f}%"


@dataclass(frozen=True)
class TrendSeries:
    """One metric of one variant's workload on one device, oldest run first."""

    runs: tuple[MeasuredRun, ...]
    noise: Noise | None  #: of A/A runs; None: there are none
    changes: tuple[LevelChange, ...] = ()

    @property
    def first(self) -> MeasuredRun:
        """The oldest run, which has the series' variant, workload and device."""
        return self.runs[0]

    @property
    def levels(self) -> list[tuple[int, int, float]]:
        """Levels as (first run, run after the last, median)."""
        bounds = [0, *(change.index for change in self.changes), len(self.runs)]
        medians = [run.median for run in self.runs]
        return [(begin, end, median(medians[begin:end])) for begin, end in pairwise(bounds)]


def trend_series(runs: Sequence[MeasuredRun]) -> list[TrendSeries]:
    """Group runs by variant, target, workload and device; changes have no suspects yet."""
    by_series: dict[tuple[Any, ...], list[MeasuredRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.at, run.attempt)):
        by_series[run.series_key].append(run)
    noise = learn_noise(runs).by_series
    return [
        TrendSeries(tuple(by_series[key]), noise.get(key), tuple(_changes(by_series[key]))) for key in sorted(by_series)
    ]


def with_suspects(series: Sequence[TrendSeries], identities: Mapping[str, Mapping[str, Any]]) -> list[TrendSeries]:
    """Name the suspects of each change by the identities of the attempts next to it."""
    return [
        replace(
            trend,
            changes=tuple(
                replace(change, suspects=tuple(suspects(change.between, identities))) for change in trend.changes
            ),
        )
        for trend in series
    ]


def attempts_at_changes(series: Sequence[TrendSeries]) -> list[str]:
    """Return the attempts whose identities `with_suspects` needs."""
    return [run.attempt for trend in series for change in trend.changes for run in change.between]


def _changes(runs: Sequence[MeasuredRun]) -> Iterator[LevelChange]:
    medians = [run.median for run in runs]
    is_linear = runs[0].metric in DETERMINISTIC or min(medians) <= 0
    points = find_change_points(medians if is_linear else [math.log(value) for value in medians])
    bounds = [0, *(point.index for point in points), len(runs)]
    for point, begin, end in zip(points, bounds, bounds[2:], strict=False):
        old, new = median(medians[begin : point.index]), median(medians[point.index : end])
        verdict, between = direction(runs[0].metric, new - old), _neighbours(runs, point.index)
        yield LevelChange(point.index, runs[point.index].at, old, new, point.p_value, verdict, between)


def _neighbours(runs: Sequence[MeasuredRun], index: int) -> tuple[MeasuredRun, MeasuredRun]:
    """Return the neighbours nearest to a change between which program, driver or node changed; else those at it."""
    nearby = range(max(1, index - NEARBY_RUNS), min(len(runs), index + NEARBY_RUNS + 1))
    for at in sorted(nearby, key=lambda at: abs(at - index)):
        before, after = runs[at - 1], runs[at]
        if (before.program, before.node) != (after.program, after.node):
            return before, after
    return runs[index - 1], runs[index]


def suspects(between: tuple[MeasuredRun, MeasuredRun], identities: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what differs between two runs: driver and versions first, then what was computed, the machine last."""
    before, after = between
    old, new = (identities.get(run.attempt) for run in between)
    named: list[str] = []
    if before.digest != after.digest and old and new:
        ranked = sorted(_ranked(difference) for difference in differences(old, new))
        named += [text for _, text in ranked]
    elif before.digest != after.digest:
        named.append(f"digest {before.digest[:SHORT_DIGEST]} to {after.digest[:SHORT_DIGEST]}")
    if before.driver != after.driver:
        named.insert(0, f"driver {before.driver or 'unknown'} to {after.driver or 'unknown'}")
    named = [*differing_variables(before.variables, after.variables), *named]
    if before.node != after.node:
        named.append(f"node {before.node} to {after.node}")
    left_out = len(named) - MAX_SUSPECTS
    return [*named[:MAX_SUSPECTS], *([f"and {left_out} more"] if left_out > 0 else [])] or [NO_SUSPECT]


def _ranked(difference: Mapping[str, Any]) -> tuple[int, str]:
    """Return a rank, the likeliest lowest, and an entry of an identity in words."""
    part, _, name = difference["entry"].partition(".")
    old, new = (_shortened(difference.get(side, "none")) for side in ("old", "new"))
    if part == "toolchain":
        return 0, f"{name} {old} to {new}"
    if part == "inputs":
        return 2, f"{name.partition('.')[2] or name} {old} to {new}"
    if part == "program":
        return 3, "the programs of haloctl itself"
    return 1, f"{name or part} {old} to {new}"


def _shortened(value: Any) -> str:
    text = str(value)
    return text[:SHORT_DIGEST] if len(text) == 64 else text
