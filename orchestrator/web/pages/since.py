"""What changed between two times: verdicts, and timings beyond noise, each with what is suspected."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from db.reads import reports
from db.reads.matrix import matrix
from orchestrator import times
from orchestrator.analysis.trends import LevelChange, TrendSeries
from orchestrator.analysis.verdicts import Verdict
from orchestrator.answers import jobs, measurements
from orchestrator.reports.changes import VerdictChange, verdict_changes
from orchestrator.views.pivots import TRACKED
from orchestrator.web.access import ReaderUser
from orchestrator.web.pages import rendering
from orchestrator.web.pages.filters import Filters, FiltersOf
from orchestrator.web.site import Site, SiteOf

router = APIRouter(include_in_schema=False)

DEFAULT_BEGIN = "24h"
MAX_EXPLAINED = 20  #: failures whose cause is looked for
PASS = "PASS"

Moment = Annotated[str, Query(max_length=40)]


@dataclass(frozen=True)
class ExplainedChange:
    """A cell whose verdict changed, with what differs from the attempt that passed."""

    change: VerdictChange
    message: str
    suspects: tuple[str, ...] = ()


@router.get("/since")
def since(
    request: Request, site: SiteOf, user: ReaderUser, filters: FiltersOf, begin: Moment = "", end: Moment = ""
) -> Response:
    """Show what changed, since a day ago by default."""
    return rendering.respond(
        "since.html.j2", request, site, user, lambda: read(site, filters, begin.strip() or DEFAULT_BEGIN, end.strip())
    )


def read(site: Site, filters: Filters, begin: str, end: str) -> dict[str, Any]:
    """Return what the page shows. Raises BadSetting for a time that is none."""
    now = datetime.now(UTC)
    from_time = times.parse_time(begin, now, "from")
    to_time = times.parse_end_time(end, now, "to") if end else None
    old, new = (
        matrix(
            site.database,
            model=filters["model"],
            variant=filters["variant"],
            target=filters["target"],
            toolchain=filters["toolchain"],
            before=time,
        )
        for time in (from_time, to_time)
    )
    changes = verdict_changes(old, new)
    shifts = _shifts(site, filters, from_time, to_time or now)
    return {
        "begin": begin,
        "end": end,
        "from_time": from_time,
        "to_time": to_time or now,
        "failing": explain(site, [change for change in changes if change.now != PASS]),
        "passing": [change for change in changes if change.now == PASS and change.was],
        "first": [change for change in changes if change.now == PASS and not change.was],
        "slower": [pair for pair in shifts if pair[1].verdict is Verdict.SLOWER],
        "faster": [pair for pair in shifts if pair[1].verdict is Verdict.FASTER],
        "filters": filters,
    }


def _shifts(site: Site, filters: Filters, begin: datetime, end: datetime) -> list[tuple[TrendSeries, LevelChange]]:
    """Return the level changes of a period, the largest first."""
    series = measurements.trend(site.database, *TRACKED, **filters)
    pairs = [(each, change) for each in series for change in each.changes if begin <= change.at <= end]
    return sorted(pairs, key=lambda pair: -abs((pair[1].ratio or 1) - 1))


def explain(site: Site, changes: Sequence[VerdictChange]) -> list[ExplainedChange]:
    """Return the changes, each task's with its message and what differs from the most similar one that passed."""
    known: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name in list(dict.fromkeys(change.task for change in changes))[:MAX_EXPLAINED]:
        task = reports.task(site.database, name)
        differing = jobs.explain(site.database, task).changes
        suspects = tuple(f"{each['entry']}: {each.get('old', '')} to {each.get('new', '')}" for each in differing)
        known[name] = (task.failure.message if task.failure else "", suspects)
    return [ExplainedChange(change, *known.get(change.task, ("",))) for change in changes]
