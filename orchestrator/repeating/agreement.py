"""Whether a task that was run again came to the same: timings within their noise, figures, files. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import stdev
from typing import Any

from db.measured import Measured
from jobs.digest import UNREAD_KINDS
from jobs.metrics import METRICS
from jobs.task import Artifact
from orchestrator.deciding.intervals import Estimate, of_strata
from orchestrator.output import quantity

#: The standard deviation of the medians of runs of the same, relative to their mean, where no runs tell better.
#: Published for MI325 in CI: about 2.5% for decode, 0.8 to 2% for prefill; logical CPU devices share their cores with
#: whatever else the machine does.
NOISE: dict[str, float] = {"cpu": 0.05}
NOISE_ELSEWHERE = 0.025
LEAST_NOISE = 0.005  #: a few runs may be alike by chance
RUNS_THAT_TELL = 5  #: as many earlier runs and their own noise counts; fewer can only add to what is published
LEAST_FOR_SPREAD = 3
CONFIDENCE = 0.95  #: that the ratio of two runs' repetitions lies in its interval
SPREADS = 2.0  #: two runs of the same are further apart than so many standard deviations once in 20 times


@dataclass(frozen=True)
class Closeness:
    """How close two figures of the same computation are: either bound is enough."""

    relative: float = 0.0
    absolute: float = 0.0


#: Figures that follow from what was computed, not from how fast: another order of additions moves them this far.
FIGURES: dict[str, Closeness] = {
    "perplexity": Closeness(relative=1e-3),
    "reference_perplexity": Closeness(relative=1e-3),
    "perplexity_increase_percent": Closeness(absolute=0.1),
    "argmax_agreement": Closeness(absolute=0.01),
    "max_logit_diff": Closeness(relative=0.25, absolute=1e-5),
    "mean_logit_diff": Closeness(relative=0.05, absolute=1e-6),
    "kl_mean": Closeness(relative=0.1, absolute=1e-9),
    "kl_max": Closeness(relative=0.25, absolute=1e-7),
    "mlir_bytes": Closeness(),
    "parameter_bytes": Closeness(),
    "vmfb_bytes": Closeness(),
    "mfma_prefill": Closeness(),
    "mfma_decode": Closeness(),
}


class Finding(StrEnum):
    """What is said of one metric or file."""

    AGREES = "agrees"
    BETTER = "better"  #: beyond the noise
    WORSE = "worse"
    DIFFERS = "differs"
    MISSING = "missing"  #: one of the two has it alone
    UNJUDGED = "not judged"  #: single samples of what varies


AGREEING = frozenset({Finding.AGREES, Finding.UNJUDGED})


@dataclass(frozen=True)
class Comparison:
    """A metric in one workload, then and now."""

    metric: str
    unit: str
    batch: int | None
    prompt_tokens: int | None
    old: float | None  #: medians
    new: float | None
    estimate: Estimate | None  #: of timings: how far their repetitions are apart
    noise: float | None  #: by how much of itself it may differ without meaning anything
    finding: Finding


def compare(
    old: Sequence[Measured], new: Sequence[Measured], earlier: Sequence[Sequence[Measured]], target: str
) -> list[Comparison]:
    """Every metric of both; `earlier` are all runs of the same in the same place, from which its noise is known."""
    before, after = ({one.key: one for one in side} for side in (old, new))
    return [_compared(key, before.get(key), after.get(key), earlier, target) for key in {**before, **after}]


def _compared(
    key: tuple[str, int | None, int | None],
    old: Measured | None,
    new: Measured | None,
    earlier: Sequence[Sequence[Measured]],
    target: str,
) -> Comparison:
    known = old or new
    assert known is not None
    about = (known.metric, known.unit, known.batch, known.prompt_tokens)
    if old is None or new is None:
        return Comparison(*about, old.median if old else None, new.median if new else None, None, None, Finding.MISSING)
    if key[0] in FIGURES:
        finding = _of_figures(FIGURES[key[0]], old.median, new.median)
        return Comparison(*about, old.median, new.median, None, None, finding)
    estimate = _apart(old.samples, new.samples)
    noise = noise_of([one.median for run in earlier for one in run if one.key == key], target)
    return Comparison(*about, old.median, new.median, estimate, noise, _of_timings(key[0], estimate, noise))


def _apart(old: Sequence[float], new: Sequence[float]) -> Estimate | None:
    """None for single samples, and where a value is not above 0, which has no logarithm."""
    if min(*old, *new) <= 0:
        return None
    sides = ([math.log(value) for value in old], [math.log(value) for value in new])
    return of_strata([sides], None, 1 - CONFIDENCE)


def _of_figures(close: Closeness, old: float, new: float) -> Finding:
    is_close = math.isclose(old, new, rel_tol=close.relative, abs_tol=close.absolute)
    return Finding.AGREES if is_close else Finding.DIFFERS


def noise_of(medians: Sequence[float], target: str) -> float:
    """By how much of itself one run's median may differ from another's without meaning anything."""
    noise = NOISE.get(target, NOISE_ELSEWHERE)
    if len(medians) >= LEAST_FOR_SPREAD and min(medians) > 0:
        found = stdev(math.log(value) for value in medians)
        noise = max(found, LEAST_NOISE if len(medians) >= RUNS_THAT_TELL else noise)
    return math.expm1(SPREADS * math.sqrt(2) * noise)


def _of_timings(metric: str, estimate: Estimate | None, noise: float) -> Finding:
    """It agrees where what it is likely to be reaches into the noise."""
    if estimate is None:
        return Finding.UNJUDGED
    low, high = estimate.interval
    if low <= 1 + noise and high >= 1 / (1 + noise):
        return Finding.AGREES
    is_lower = high < 1
    return Finding.BETTER if is_lower == METRICS[metric].is_lower_better else Finding.WORSE


@dataclass(frozen=True)
class FileComparison:
    """A file that both made, or one of them."""

    name: str
    old: str | None  #: sha256
    new: str | None
    finding: Finding


def compare_files(old: Sequence[Artifact], new: Sequence[Artifact]) -> list[FileComparison]:
    """The outputs but for logs and reports, which have times in them."""
    before, after = ({file.name: file.sha256 for file in side if file.kind not in UNREAD_KINDS} for side in (old, new))
    found = []
    for name in {**before, **after}:
        then, now = before.get(name), after.get(name)
        finding = Finding.MISSING if then is None or now is None else Finding.DIFFERS
        found.append(FileComparison(name, then, now, Finding.AGREES if then == now else finding))
    return found


def agrees(comparisons: Sequence[Comparison], files: Sequence[FileComparison]) -> bool:
    """Whether nothing that was compared speaks against it."""
    findings = [*(one.finding for one in comparisons), *(one.finding for one in files)]
    return AGREEING.issuperset(findings)


def as_row(found: Comparison) -> dict[str, Any]:
    """For programs."""
    estimate = found.estimate
    return {
        "metric": found.metric,
        "unit": found.unit,
        "batch": found.batch,
        "prompt_tokens": found.prompt_tokens,
        "old": found.old,
        "new": found.new,
        "ratio": estimate and estimate.ratio,
        "interval": estimate and list(estimate.interval),
        "noise": found.noise,
        "finding": found.finding.value,
    }


def line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a table for people."""
    values = ("" if row[side] is None else quantity(row[side], row["unit"]) for side in ("old", "new"))
    interval = "" if row["interval"] is None else "{:.3f} to {:.3f}".format(*row["interval"])
    return (
        row["metric"],
        *("" if row[key] is None else str(row[key]) for key in ("batch", "prompt_tokens")),
        *values,
        "" if row["ratio"] is None else f"{row['ratio']:.3f}",
        interval,
        "" if row["noise"] is None else f"{row['noise']:.0%}",
        row["finding"],
    )
