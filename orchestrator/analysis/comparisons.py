"""Two sets of runs, paired by device, workload and metric, and the verdict on each pair. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import Any

from db.reads.runs import MeasuredRun, differing_variables
from jobs.errors import BadSetting
from orchestrator.analysis.intervals import (
    ALPHA,
    RatioEstimate,
    Stratum,
    benjamini_hochberg_threshold,
    paired_estimate,
    runs_needed,
    stratified_estimate,
)
from orchestrator.analysis.noise import NoiseModel
from orchestrator.analysis.verdicts import DETERMINISTIC, Verdict, direction
from orchestrator.formatting import format_count
from orchestrator.workloads import Workload

FEWEST_RUNS = 3  #: of a side, that tell by themselves how much they vary

Key = tuple[Any, ...]
Runs = Sequence[MeasuredRun]
RunPair = tuple[MeasuredRun, MeasuredRun]  #: (old, new)


@dataclass(frozen=True)
class Comparison:
    """One metric in one workload, measured by old and by new runs on the same devices."""

    metric: str
    unit: str
    workload: Workload
    target: str
    old: float | None  #: the geometric mean of the runs' medians, of a deterministic metric their median; None: no run
    new: float | None
    #: None: the metric is deterministic, nothing tells how much it varies, or no device has both sides
    estimate: RatioEstimate | None = None
    verdict: Verdict = Verdict.INCONCLUSIVE
    tolerance: float | None = None  #: up to which relative difference noise explains it, where that is what decides
    old_variant: str = ""
    new_variant: str = ""
    places: tuple[str, ...] = ()
    old_runs: int = 1
    new_runs: int = 1
    more_runs: int = 0  #: of each side, that would decide it beyond those that there are
    reason: str = ""  #: why it is inconclusive
    conditions: tuple[str, ...] = ()  #: environment variables that differ between the sides, in words

    @property
    def ratio(self) -> float | None:
        """New divided by old."""
        if self.estimate is not None:
            return self.estimate.ratio
        return self.new / self.old if self.old and self.new is not None else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The bounds of the ratio."""
        return self.estimate.interval if self.estimate else None


def compare(
    old: Runs, new: Runs, noise: NoiseModel, margin_percent: float, *, each_device: bool = False
) -> list[Comparison]:
    """Compare every metric and workload that both sides have; raise BadSetting where a side is several variants."""
    old, new = _disjoint(old, new)
    axes = _axes_in_common(old, new)
    old_cells, new_cells = (_by_cell(side, axes) for side in (old, new))
    comparisons = [
        comparison
        for key, runs in old_cells.items()
        if key in new_cells
        for comparison in _compare_cell(runs, new_cells[key], noise, each_device=each_device)
    ]
    return with_verdicts(comparisons, margin_percent)


def newest_pairs(old: Runs, new: Runs) -> list[RunPair]:
    """Return the newest run of each side for every metric and workload of both; old and new may be the same runs."""
    if not is_same_runs(old, new):
        old, new = _disjoint(old, new)
    axes = _axes_in_common(old, new)
    old_cells, new_cells = (_by_cell(side, axes) for side in (old, new))
    return [(_newest(runs), _newest(new_cells[key])) for key, runs in old_cells.items() if key in new_cells]


def is_same_runs(old: Runs, new: Runs) -> bool:
    """Whether two sides are the same attempts."""
    return {run.attempt for run in old} == {run.attempt for run in new}


def compare_pairs(
    pairs: Mapping[Key, Sequence[RunPair]], noise: NoiseModel, margin_percent: float, alpha: float
) -> list[Comparison]:
    """Compare runs that were interleaved on one device: by metric and workload, in the order of their rounds."""
    comparisons = []
    for rounds in pairs.values():
        comparison = _without_verdict([old for old, _ in rounds], [new for _, new in rounds])
        if comparison.metric not in DETERMINISTIC and all(min(old.median, new.median) > 0 for old, new in rounds):
            log_ratios = [math.log(new.median / old.median) for old, new in rounds]
            prior = noise.noise_of(*rounds[0], own_degrees_of_freedom=len(rounds) - 1)
            comparison = replace(comparison, estimate=paired_estimate(log_ratios, prior, alpha))
        comparisons.append(comparison)
    return with_verdicts(comparisons, margin_percent, alpha)


def with_verdicts(comparisons: Sequence[Comparison], margin_percent: float, alpha: float = ALPHA) -> list[Comparison]:
    """Decide comparisons made at once: of those called different at most a share of `alpha` is so by chance."""
    p_values = [comparison.estimate.p_value for comparison in comparisons if comparison.estimate]
    threshold = benjamini_hochberg_threshold(p_values, alpha) if p_values else 0.0
    log_margin = math.log1p(margin_percent / 100)
    return [_decided(comparison, log_margin, threshold, alpha, len(p_values)) for comparison in comparisons]


def _decided(comparison: Comparison, log_margin: float, threshold: float, alpha: float, count: int) -> Comparison:
    if comparison.metric in DETERMINISTIC:
        return replace(comparison, verdict=_deterministic_verdict(comparison))
    estimate = comparison.estimate
    if estimate is None:
        return comparison
    if -log_margin <= estimate.log_low and estimate.log_high <= log_margin:
        return replace(comparison, verdict=Verdict.EQUIVALENT)
    if estimate.p_value <= threshold and estimate.excludes_equality:
        return replace(comparison, verdict=direction(comparison.metric, estimate.log_ratio))
    fewer = min(comparison.old_runs, comparison.new_runs)
    more = max(runs_needed(estimate, log_margin, alpha) - fewer, 1)
    needs = f"needs {more} more {'run' if more == 1 else 'runs'} of each"
    by_chance = f"may be chance among {count} comparisons: " if estimate.excludes_equality else ""
    return replace(comparison, more_runs=more, reason=f"{by_chance}{needs}")


def _deterministic_verdict(comparison: Comparison) -> Verdict:
    assert comparison.old is not None and comparison.new is not None
    if DETERMINISTIC[comparison.metric].allows(comparison.old, comparison.new):
        return Verdict.EQUIVALENT
    return direction(comparison.metric, comparison.new - comparison.old)


def _disjoint(old: Runs, new: Runs) -> tuple[Runs, Runs]:
    """Give a run that both sides name to the side that names fewer."""
    if old and is_same_runs(old, new):
        raise BadSetting("A, B", "both name the same runs: name two different ones, or measure anew with --run")
    old_attempts, new_attempts = ({run.attempt for run in side} for side in (old, new))
    if len(old_attempts) <= len(new_attempts):
        return old, [run for run in new if run.attempt not in old_attempts]
    return [run for run in old if run.attempt not in new_attempts], new


def _axes_in_common(old: Runs, new: Runs) -> tuple[str, ...]:
    """Return the axes that must agree: those on which the sides share a value. The others are what is compared."""
    axes = ("model", *(old[0].axes if old else ()))
    combinations = [{_axis_values(run, axes) for run in side} for side in (old, new)]
    values = [[{combination[index] for combination in side} for index in range(len(axes))] for side in combinations]
    return tuple(axis for axis, *both in zip(axes, *values, strict=True) if both[0] & both[1])


def _axis_values(run: MeasuredRun, axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple([run.model if axis == "model" else run.axes[axis] for axis in axes])


def _by_cell(runs: Runs, axes: Sequence[str]) -> dict[Key, list[MeasuredRun]]:
    cells: dict[Key, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        cells[(*_axis_values(run, axes), run.target, run.metric, run.workload)].append(run)
    return cells


def _newest(runs: Runs) -> MeasuredRun:
    return max(runs, key=lambda run: run.at)


def _compare_cell(old: Runs, new: Runs, noise: NoiseModel, *, each_device: bool) -> list[Comparison]:
    for letter, side in (("A", old), ("B", new)):
        variants = sorted({run.variant.partition("@")[0] for run in side})
        if len(variants) > 1:
            others = " and others" if len(variants) > 2 else ""
            raise BadSetting(letter, f"is {variants[0]}, {variants[1]}{others}: name one of them with variant:NAME")
    places = sorted({run.place for run in old} & {run.place for run in new})
    if not places:
        old_on, new_on = (", ".join(sorted({run.place for run in side})[:2]) for side in (old, new))
        reason = f"no device has both: A ran on {old_on}, B on {new_on}"
        return [replace(_without_verdict(old, new), places=(), reason=reason)]
    groups = [[place] for place in places] if each_device else [places]
    return [_compare_on(group, old, new, noise) for group in groups]


def _compare_on(places: Sequence[str], old: Runs, new: Runs, noise: NoiseModel) -> Comparison:
    old, new = ([run for run in side if run.place in places] for side in (old, new))
    comparison = _without_verdict(old, new)
    if comparison.metric in DETERMINISTIC:
        return comparison
    if min(run.median for run in (*old, *new)) <= 0:
        return replace(comparison, reason="not above 0: it has no ratio")
    strata: list[Stratum] = [
        ([math.log(run.median) for run in old if run.place == place],
         [math.log(run.median) for run in new if run.place == place])
        for place in places
    ]  # fmt: skip
    own_degrees_of_freedom = len(old) + len(new) - 2 * len(places)
    prior = noise.noise_of(old[0], new[0], own_degrees_of_freedom=own_degrees_of_freedom)
    estimate = stratified_estimate(strata, prior)
    if estimate is None:
        more = FEWEST_RUNS - min(len(old), len(new))
        reason = f"nothing tells yet how much it varies: needs {format_count(more, 'more run')} of each"
        return replace(comparison, more_runs=more, reason=reason)
    return replace(comparison, estimate=estimate)


def _centre(runs: Runs) -> float:
    """Average such that on one device the ratio of the averages is the estimated ratio."""
    medians = [run.median for run in runs]
    is_mean = runs[0].metric not in DETERMINISTIC and min(medians) > 0
    return geometric_mean(medians) if is_mean else median(medians)


def _differing_conditions(old: Runs, new: Runs) -> list[str]:
    """Say which environment variables differ from the old side to the new one, or within a side."""
    first = next((run.variables for run in old if run.variables is not None), None)
    differing = [text for run in (*old, *new) for text in differing_variables(first, run.variables)]
    return list(dict.fromkeys(differing))


def _without_verdict(old: Runs, new: Runs) -> Comparison:
    first = old[0]
    return Comparison(
        metric=first.metric,
        unit=first.unit,
        workload=first.workload,
        target=first.target,
        old=_centre(old),
        new=_centre(new),
        old_variant=first.variant,
        new_variant=new[0].variant,
        places=tuple(sorted({run.place for run in (*old, *new)})),
        conditions=tuple(_differing_conditions(old, new)),
        old_runs=len(old),
        new_runs=len(new),
    )
