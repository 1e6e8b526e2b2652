"""The two sides of a comparison of stored runs, read from the database."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from db.connection.engine import Database
from db.reads.run_filter import RunFilter
from db.reads.runs import MeasuredRun, runs
from db.schema import loose_scan
from db.schema.filters import PATTERN_SIGNS
from jobs.errors import NothingToDo
from jobs.metrics import METRICS
from orchestrator.analysis.comparisons import Comparison, compare
from orchestrator.analysis.noise import NoiseModel, learn_noise
from orchestrator.analysis.verdicts import DETERMINISTIC
from orchestrator.formatting import format_count
from orchestrator.workloads import workload_words

MAX_HISTORY = 2000  #: measurements that noise is learned from
ENOUGH_DEGREES_OF_FREEDOM = 14.0  #: of both sides: as many tell their noise without earlier runs


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the text that selects it, and its runs."""

    text: str
    runs: list[MeasuredRun]


def read_side(database: Database, text: str, run_filter: RunFilter) -> Side:
    """Read the runs that a selector stands for; raise NothingToDo where there are none."""
    selected = runs(database, run_filter)
    if selected:
        return Side(text, selected)
    if not run_filter.disturbed and (disturbed := len(runs(database, replace(run_filter, disturbed=True)))):
        raise NothingToDo(
            f"{text} has only disturbed measurements ({disturbed}): `haloctl results --json` says what disturbed them; "
            "--disturbed compares them anyway"
        )
    remedy = _close_variants(database, run_filter) or "`haloctl results` shows what was measured"
    raise NothingToDo(f"{text} has no measurements of {', '.join(run_filter.metrics)}: {remedy}")


def _close_variants(database: Database, run_filter: RunFilter) -> str:
    """Suggest variants with a similar name, where none has the name."""
    if run_filter.variant is None or PATTERN_SIGNS & set(run_filter.variant):
        return ""
    with database.reading() as connection:
        names = loose_scan.variants(connection)
    close = [] if run_filter.variant in names else get_close_matches(run_filter.variant, names)
    return f"there is no such variant; did you mean {' or '.join(close)}?" if close else ""


def recent_runs(database: Database, sides: Sequence[Side], *, disturbed: bool = False) -> list[MeasuredRun]:
    """Read the newest runs of the sides' variants, which noise is learned from."""
    selected = [run for side in sides for run in side.runs]
    variants = {run.variant for run in selected}
    run_filter = RunFilter(_metrics(sides), variants=tuple(sorted(variants)), disturbed=disturbed)
    return runs(database, run_filter, MAX_HISTORY)


def _metrics(sides: Sequence[Side]) -> tuple[str, ...]:
    return tuple(sorted({run.metric for side in sides for run in side.runs}))


def compare_sides(
    database: Database, old: Side, new: Side, margin_percent: float, *, each_device: bool, disturbed: bool = False
) -> list[Comparison]:
    """Compare in the order of variants, metrics and workloads; raise NothingToDo where nothing pairs."""
    comparisons = compare(old.runs, new.runs, NoiseModel(), margin_percent, each_device=each_device)
    degrees = [
        comparison.estimate.degrees_of_freedom if comparison.estimate else 0.0
        for comparison in comparisons
        if comparison.metric not in DETERMINISTIC
    ]
    if any(known < ENOUGH_DEGREES_OF_FREEDOM for known in degrees):
        attempts = {run.attempt for side in (old, new) for run in side.runs}
        earlier = recent_runs(database, (old, new), disturbed=disturbed)
        noise = learn_noise(run for run in earlier if run.attempt not in attempts)
        if any(run.series_key not in noise.by_series for side in (old, new) for run in side.runs):
            others = runs(database, RunFilter(_metrics((old, new)), disturbed=disturbed), MAX_HISTORY)
            noise = replace(noise, by_kind=learn_noise(run for run in others if run.attempt not in attempts).by_kind)
        comparisons = compare(old.runs, new.runs, noise, margin_percent, each_device=each_device)
    if not comparisons:
        raise NothingToDo(
            f"{old.text} and {new.text} have no metric and workload in common: A measured {_summary(old.runs)}; "
            f"B measured {_summary(new.runs)}"
        )
    rank = {metric: number for number, metric in enumerate(METRICS)}
    return sorted(comparisons, key=lambda c: (c.old_variant, c.target, rank[c.metric], c.workload, c.places))


def _summary(runs: Sequence[MeasuredRun]) -> str:
    measured = sorted({(run.variant, run.metric, run.workload) for run in runs})
    named = [f"{variant} {metric} {workload_words(workload)}".strip() for variant, metric, workload in measured[:2]]
    return ", ".join(named) + (f" and {format_count(len(measured) - 2, 'other')}" if len(measured) > 2 else "")
