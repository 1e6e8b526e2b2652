"""Comparisons and trends of stored runs, selected by what users write."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from db.connection.engine import Database
from db.reads.run_filter import RunFilter
from db.reads.runs import identities_of, runs
from jobs.errors import BadSetting
from jobs.metrics import METRICS
from orchestrator import times
from orchestrator.analysis import selectors, sides, trends
from orchestrator.analysis.comparisons import Comparison
from orchestrator.analysis.sides import Side
from orchestrator.analysis.trends import TrendSeries


@dataclass(frozen=True)
class Sides:
    """What is compared: two sides, each as the user wrote it, with the filter and the runs that it stands for."""

    texts: tuple[str, str]
    filters: tuple[RunFilter, RunFilter]

    def read(self, database: Database) -> tuple[Side, Side]:
        """Read the runs. Raises NothingToDo for a side without any, NotFound, AmbiguousId."""
        old, new = (sides.read_side(database, *side) for side in zip(self.texts, self.filters, strict=True))
        return old, new


def parse_sides(
    old: str,
    new: str,
    *,
    metric: str | None = None,
    model: str | None = None,
    variant: str | None = None,
    target: str | None = None,
    disturbed: bool = False,
) -> Sides:
    """Parse two selectors, such as `engine:torch,7d..`. Raises BadSetting."""
    metrics = selectors.metrics(metric)
    common = RunFilter(
        metrics, model=model or None, variant=variant or None, target=target or None, disturbed=disturbed
    )
    now = datetime.now(UTC)
    return Sides((old, new), (selectors.parse(old, common, now), selectors.parse(new, common, now)))


def compare(database: Database, compared: Sides, *, margin: float = 2.0, each_device: bool = False) -> list[Comparison]:
    """Compare the stored runs of two sides. Raises NothingToDo, NotFound, AmbiguousId."""
    old, new = compared.read(database)
    disturbed = compared.filters[0].disturbed
    return sides.compare_sides(database, old, new, margin, each_device=each_device, disturbed=disturbed)


def trend(
    database: Database, *metrics: str, since: str | None = None, until: str | None = None, **filters: object
) -> list[TrendSeries]:
    """Return the series of metrics with their changes and suspects; `filters` are those of RunFilter.

    Of very many measurements the newest are read, in equal shares for the metrics. Raises BadSetting for an unknown
    metric or a time that is none.
    """
    for metric in metrics:
        if metric not in METRICS:
            raise BadSetting("METRIC", f"unknown metric {metric!r}: choose one of {', '.join(METRICS)}")
    now = datetime.now(UTC)
    run_filter = replace(
        RunFilter(metrics, **filters),  # type: ignore[arg-type]
        since=times.parse_time(since, now) if since else None,
        until=times.parse_end_time(until, now, "--until") if until else None,
    )
    all_series = trends.trend_series(runs(database, run_filter))
    return trends.with_suspects(all_series, identities_of(database, trends.attempts_at_changes(all_series)))
