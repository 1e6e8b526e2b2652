"""Whether a task that ran again came to the same result: timings within noise, deterministic metrics, files. Pure.

Unlike `compare`, which tells two programs apart by many runs, this has one run of each. The repetitions within both
give an interval of their ratio; they agree where it reaches into what noise between runs explains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from db.reads.earlier_measurements import StoredMeasurement
from jobs.artifact_kinds import is_input
from jobs.task import Artifact
from orchestrator.analysis.comparisons import Comparison
from orchestrator.analysis.intervals import RatioEstimate, stratified_estimate
from orchestrator.analysis.noise import pooled_noise, published_sigma, with_prior
from orchestrator.analysis.verdicts import AGREEING, DETERMINISTIC, Verdict, direction

CONFIDENCE = 0.95  #: that the ratio of two runs' repetitions lies in its interval
DEVIATIONS = 2.0  #: two runs of the same program are further apart than so many standard deviations once in 20 times


@dataclass(frozen=True)
class FileComparison:
    """An output file of both attempts, or of one of them."""

    name: str
    old: str | None  #: sha256
    new: str | None
    verdict: Verdict


def compare_attempts(
    old: Sequence[StoredMeasurement],
    new: Sequence[StoredMeasurement],
    earlier: Sequence[Sequence[StoredMeasurement]],
    target: str,
) -> list[Comparison]:
    """Compare every metric of two attempts; `earlier` are all of the same task in the same place, to know its noise."""
    old_by_key, new_by_key = ({measured.key: measured for measured in side} for side in (old, new))
    comparisons = []
    for key in {**old_by_key, **new_by_key}:
        medians = [measured.median for attempt in earlier for measured in attempt if measured.key == key]
        comparisons.append(_compare(old_by_key.get(key), new_by_key.get(key), medians, target))
    return comparisons


def _compare(
    old: StoredMeasurement | None, new: StoredMeasurement | None, earlier_medians: Sequence[float], target: str
) -> Comparison:
    known = old or new
    assert known is not None
    estimate, verdict, tolerance = None, Verdict.MISSING, None
    if old and new and known.metric in DETERMINISTIC:
        is_same = DETERMINISTIC[known.metric].allows(old.median, new.median)
        verdict = Verdict.AGREES if is_same else Verdict.DIFFERS
    elif old and new:
        estimate, tolerance = (
            _estimate(old.samples, new.samples),
            noise_tolerance(earlier_medians, known.metric, target),
        )
        verdict = _timing_verdict(known.metric, estimate, tolerance)
    _, batch, prompt_tokens, evaluation = known.key
    sizes = (("batch", batch), ("prompt_tokens", prompt_tokens), ("evaluation", evaluation))
    return Comparison(
        metric=known.metric,
        unit=known.unit,
        workload=tuple((name, size) for name, size in sizes if size is not None),
        target=target,
        old=old.median if old else None,
        new=new.median if new else None,
        estimate=estimate,
        verdict=verdict,
        tolerance=tolerance,
    )


def _estimate(old: Sequence[float], new: Sequence[float]) -> RatioEstimate | None:
    """Estimate from repetitions; None for single ones, and where a value is not above 0 and has no logarithm."""
    if min(*old, *new) <= 0:
        return None
    return stratified_estimate([([*map(math.log, old)], [*map(math.log, new)])], None, 1 - CONFIDENCE)


def noise_tolerance(earlier_medians: Sequence[float], metric: str, target: str) -> float | None:
    """Return the relative difference of two runs of the same program that noise explains; None if nothing tells it."""
    logs = [math.log(median) for median in earlier_medians if median > 0]
    noise = with_prior(pooled_noise([logs]) if logs else None, published_sigma(metric, target))
    if noise is None:
        return None
    return math.expm1(DEVIATIONS * math.sqrt(2) * noise.sigma)


def _timing_verdict(metric: str, estimate: RatioEstimate | None, tolerance: float | None) -> Verdict:
    if estimate is None or tolerance is None:
        return Verdict.UNJUDGED
    low, high = estimate.interval
    if low <= 1 + tolerance and high >= 1 / (1 + tolerance):
        return Verdict.AGREES
    return direction(metric, estimate.log_ratio)


def compare_files(old: Sequence[Artifact], new: Sequence[Artifact]) -> list[FileComparison]:
    """Compare the outputs, except for logs and reports, which contain times."""
    old_by_name, new_by_name = ({file.name: file.sha256 for file in side if is_input(file.kind)} for side in (old, new))
    comparisons = []
    for name in {**old_by_name, **new_by_name}:
        before, after = old_by_name.get(name), new_by_name.get(name)
        verdict = Verdict.MISSING if before is None or after is None else Verdict.DIFFERS
        comparisons.append(FileComparison(name, before, after, Verdict.AGREES if before == after else verdict))
    return comparisons


def agrees(comparisons: Sequence[Comparison | FileComparison]) -> bool:
    """Whether no comparison speaks against it."""
    return AGREEING.issuperset(comparison.verdict for comparison in comparisons)
