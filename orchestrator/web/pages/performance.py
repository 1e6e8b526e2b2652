"""Metrics over time beside their targets, with the changes of their levels; and comparisons of any two."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from db.writes.targets import QuotedTarget, quoted_targets, target_for
from jobs.metrics import METRICS
from jobs.number_format import format_number
from orchestrator.analysis.trends import TrendSeries
from orchestrator.answers import measurements
from orchestrator.formatting import format_count
from orchestrator.views import comparison_rows, trend_rows
from orchestrator.views.pivots import TRACKED
from orchestrator.web.access import ReaderUser
from orchestrator.web.pages import rendering
from orchestrator.web.pages.filters import MAX_TEXT, Filters, FiltersOf
from orchestrator.web.site import Site, SiteOf
from orchestrator.workloads import workload_text

router = APIRouter(include_in_schema=False)

MAX_PLOTS = 12
Short = Annotated[str, Query(max_length=MAX_TEXT)]


@dataclass(frozen=True)
class Plot:
    """A series as the page draws it, with the table below it."""

    series: TrendSeries
    quoted: float | None

    @property
    def title(self) -> str:
        """What was measured where."""
        first = self.series.first
        return " ".join(filter(None, (first.variant, first.target, workload_text(first.workload))))

    @property
    def data(self) -> str:
        """The plot's values in JSON: times in seconds, medians, levels, target, and where the level changes."""
        runs = self.series.runs
        levels = [level for begin, end, level in self.series.levels for _ in range(begin, end)]
        values = {
            "unit": self.series.first.unit,
            "times": [run.at.timestamp() for run in runs],
            "medians": [run.median for run in runs],
            "levels": levels,
            "target": self.quoted,
            "changes": [change.at.timestamp() for change in self.series.changes],
        }
        return json.dumps(values, allow_nan=False).replace("<", "\\u003c")

    @property
    def summary(self) -> str:
        """Where the metric stands, for who can't see the plot."""
        unit, levels = self.series.first.unit, self.series.levels
        now = f"{format_count(len(self.series.runs), 'run')}, now {format_number(levels[-1][2])} {unit}"
        target = f", target {format_number(self.quoted)} {unit}" if self.quoted is not None else ""
        return f"{now}{target}, {format_count(len(self.series.changes), 'level change')}"


@router.get("/performance")
def performance(
    request: Request, site: SiteOf, user: ReaderUser, filters: FiltersOf, metric: Short = "", since: Short = ""
) -> Response:
    """Show metrics over time: TTFT and ITL by default."""
    return rendering.respond(
        "performance.html.j2", request, site, user, lambda: read(site, filters, metric.strip(), since.strip())
    )


def read(site: Site, filters: Filters, metric: str, since: str) -> dict[str, Any]:
    """Return what the page shows. Raises BadSetting for an unknown metric or a time that is none."""
    quoted = quoted_targets(site.database)
    metrics = (metric,) if metric else TRACKED
    series = measurements.trend(site.database, *metrics, since=since or None, **filters)
    plots = sorted((plot_of(each, quoted) for each in series), key=lambda plot: plot.quoted is None)
    by_variant = sorted(plots[:MAX_PLOTS], key=lambda plot: (plot.title, plot.series.first.metric))
    return {
        "plots": by_variant,
        "left_out": len(plots) - len(by_variant),
        "series": trend_rows.to_table(series),
        "changes": trend_rows.changes_table(series),
        "metrics": list(METRICS),
        "filters": {**filters, "metric": metric, "since": since},
    }


def plot_of(series: TrendSeries, quoted: Sequence[QuotedTarget]) -> Plot:
    """Return a series with the target that applies to it now."""
    first = series.first
    sizes: dict[str, Any] = dict(first.workload)
    target = target_for(
        quoted,
        variant=first.variant,
        target=first.target,
        metric=first.metric,
        batch=sizes.get("batch"),
        prompt_tokens=sizes.get("prompt_tokens"),
        new_tokens=sizes.get("new_tokens"),
    )
    return Plot(series, target.value if target else None)


@router.get("/compare")
def compare(
    request: Request, site: SiteOf, user: ReaderUser, old: Short = "", new: Short = "", metric: Short = ""
) -> Response:
    """Compare any two: variants, jobs, days, toolchains."""

    def shown() -> dict[str, Any]:
        table = None
        if old and new:
            sides = measurements.parse_sides(old, new, metric=metric or None)
            table = comparison_rows.to_table(measurements.compare(site.database, sides))
        return {"table": table, "filters": {"old": old, "new": new, "metric": metric}}

    return rendering.respond("compare.html.j2", request, site, user, shown)
