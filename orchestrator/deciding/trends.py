"""A metric over time on one device: its levels, where they change, and what changed with them. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from db.runs import Run
from jobs.digest import differences
from jobs.metrics import METRICS
from orchestrator.deciding.change_points import splits
from orchestrator.deciding.comparing import SPEEDS, Verdict
from orchestrator.deciding.intervals import Noise
from orchestrator.deciding.noise import learned
from orchestrator.repeating.agreement import FIGURES

NEAR = 2  #: runs: noise may show a change so much sooner or later than it came
MOST_SUSPECTS = 5
NOTHING = "nothing that is recorded changed: neither program, toolchain, driver nor node"
SHORT = 8  #: characters of a digest


@dataclass(frozen=True)
class Change:
    """Where a series takes another level."""

    index: int  #: of the first run of the new one
    at: datetime
    old: float  #: medians of both levels
    new: float
    p: float
    verdict: Verdict
    between: tuple[Run, Run]  #: the runs between which what is suspected changed
    suspects: tuple[str, ...] = ()  #: in words, the likeliest first

    @property
    def ratio(self) -> float | None:
        """New over old."""
        return self.new / self.old if self.old else None

    @property
    def in_words(self) -> str:
        """`+4.5%`."""
        return "" if self.ratio is None else f"{100 * (self.ratio - 1):+.1f}%"


@dataclass(frozen=True)
class Series:
    """One metric of one variant's workload on one device, oldest first."""

    runs: tuple[Run, ...]
    noise: Noise | None  #: of runs between which nothing changed; None: there are none
    changes: tuple[Change, ...] = ()

    @property
    def first(self) -> Run:
        """Which tells what it is of."""
        return self.runs[0]

    @property
    def levels(self) -> list[tuple[int, int, float]]:
        """From which run to before which, and the median of those."""
        bounds = [0, *(change.index for change in self.changes), len(self.runs)]
        values = [run.median for run in self.runs]
        return [(begin, end, median(values[begin:end])) for begin, end in pairwise(bounds)]


def series_of(runs: Sequence[Run]) -> list[Series]:
    """By variant, target, workload and device; what changed is not named yet."""
    by_bench: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.at, run.attempt)):
        by_bench[run.bench].append(run)
    noises = learned(runs).found
    found = (Series(tuple(by_bench[bench]), noises.get(bench)) for bench in sorted(by_bench))
    return [replace(one, changes=tuple(_changes(one.runs))) for one in found]


def named(series: Sequence[Series], identities: Mapping[str, Mapping[str, Any]]) -> list[Series]:
    """With the suspects of each change, by the identities of the attempts that are next to them."""
    return [
        replace(
            one,
            changes=tuple(
                replace(change, suspects=tuple(suspects(change.between, identities))) for change in one.changes
            ),
        )
        for one in series
    ]


def attempts_beside(series: Sequence[Series]) -> list[str]:
    """Those whose identities tell what changed."""
    return [run.attempt for one in series for change in one.changes for run in change.between]


def _changes(runs: Sequence[Run]) -> Iterator[Change]:
    values = [run.median for run in runs]
    is_figure = runs[0].metric in FIGURES or min(values) <= 0
    found = splits(values if is_figure else [math.log(value) for value in values])
    bounds = [0, *(split.index for split in found), len(runs)]
    for split, begin, end in zip(found, bounds, bounds[2:], strict=False):
        old, new = median(values[begin : split.index]), median(values[split.index : end])
        beside = _beside(runs, split.index)
        yield Change(split.index, runs[split.index].at, old, new, split.p, _verdict(runs[0], new - old), beside)


def _verdict(run: Run, difference: float) -> Verdict:
    is_better = (difference < 0) == METRICS[run.metric].is_lower_better
    if run.unit in SPEEDS:
        return Verdict.FASTER if is_better else Verdict.SLOWER
    return Verdict.BETTER if is_better else Verdict.WORSE


def _beside(runs: Sequence[Run], index: int) -> tuple[Run, Run]:
    """The two neighbours nearest to a change between which something else changed; else those at it."""
    near = sorted(range(max(1, index - NEAR), min(len(runs), index + NEAR + 1)), key=lambda at: abs(at - index))
    for at in near:
        if _facts(runs[at - 1]) != _facts(runs[at]):
            return runs[at - 1], runs[at]
    return runs[index - 1], runs[index]


def _facts(run: Run) -> tuple[str, ...]:
    return (*run.program, run.node)


def suspects(between: tuple[Run, Run], identities: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not the same for two runs: versions first, then what was computed, the machine at last."""
    before, after = between
    old, new = (identities.get(run.attempt) for run in between)
    found: list[str] = []
    if before.digest != after.digest and old and new:
        told = [_in_words(one) for one in differences(old, new)]
        found += [text for _, text in sorted(told)]
    elif before.digest != after.digest:
        found.append(f"digest {before.digest[:SHORT]} to {after.digest[:SHORT]}")
    if before.driver != after.driver:
        found.insert(0, f"driver {before.driver or 'unknown'} to {after.driver or 'unknown'}")
    if before.node != after.node:
        found.append(f"node {before.node} to {after.node}")
    more = len(found) - MOST_SUSPECTS
    return [*found[:MOST_SUSPECTS], *([f"and {more} more"] if more > 0 else [])] or [NOTHING]


def _in_words(difference: Mapping[str, Any]) -> tuple[int, str]:
    """What goes first, and an entry of an identity as people call it."""
    part, _, name = difference["entry"].partition(".")
    old, new = (_short(difference.get(side, "none")) for side in ("old", "new"))
    if part == "toolchain":
        return 0, f"{name} {old} to {new}"
    if part == "inputs":
        return 2, f"{name.partition('.')[2] or name} {old} to {new}"
    if part == "program":
        return 3, "the programs of haloctl itself"
    return 1, f"{name or part} {old} to {new}"


def _short(value: Any) -> str:
    text = str(value)
    return text[:SHORT] if len(text) == 64 else text
