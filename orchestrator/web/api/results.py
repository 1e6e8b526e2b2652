"""The matrix, measurements, comparisons, trends, targets, nodes, events and costs."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from db.reads.attempt_costs import attempt_costs
from db.reads.events import EventFilter, read_events
from db.reads.matrix import matrix as read_matrix
from db.writes.targets import in_force, quoted_targets
from orchestrator import times
from orchestrator.answers import machines, measurements, pages
from orchestrator.views import comparison_rows, event_rows, matrix_view, target_rows, trend_rows, usage_rows
from orchestrator.web.access import ReaderUser
from orchestrator.web.api.answers import MAX_TEXT, After, Limit, Since, Text, answer
from orchestrator.web.site import SiteOf

router = APIRouter(tags=["results"])

Selector = Annotated[str, Query(min_length=1, max_length=MAX_TEXT, description="As for `haloctl compare`.")]
Count = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/matrix")
def matrix(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    job: Text = None,
    model: Text = None,
    variant: Text = None,
    target: Text = None,
    toolchain: Text = None,
) -> Response:
    """Return the matrix of variants and stages: of a job, or the newest verdict of each cell."""

    def rows() -> list[dict[str, Any]]:
        cells = read_matrix(site.database, job=job, model=model, variant=variant, target=target, toolchain=toolchain)
        return matrix_view.to_json(cells)

    return answer(request, site, rows)


@router.get("/results")
def results(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    job: Text = None,
    model: Text = None,
    variant: Text = None,
    target: Text = None,
    toolchain: Text = None,
    metric: Text = None,
    since: Since = None,
    limit: Limit = 1000,
    after: After = None,
) -> Response:
    """List measurements with their samples and contexts, newest first."""
    names = {"job": job, "model": model, "variant": variant, "target": target, "toolchain": toolchain, "metric": metric}
    begin = _time(since)
    return answer(request, site, lambda: pages.results(site.database, limit=limit, after=after, since=begin, **names))


@router.get("/compare")
def compare(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    old: Selector,
    new: Selector,
    metric: Text = None,
    model: Text = None,
    variant: Text = None,
    target: Text = None,
    margin: Annotated[float, Query(ge=0.1, le=50, allow_inf_nan=False)] = 2.0,
    each_device: bool = False,
    disturbed: bool = False,
) -> Response:
    """Say whether B (`new`) is faster than A (`old`), slower or equivalent."""
    names = {"metric": metric, "model": model, "variant": variant, "target": target}

    def rows() -> list[dict[str, Any]]:
        sides = measurements.parse_sides(old, new, **names, disturbed=disturbed)
        compared = measurements.compare(site.database, sides, margin=margin, each_device=each_device)
        return [comparison_rows.to_json(comparison) for comparison in compared]

    return answer(request, site, rows)


@router.get("/trend/{metric}")
def trend(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    metric: str,
    model: Text = None,
    variant: Text = None,
    target: Text = None,
    toolchain: Text = None,
    node: Text = None,
    batch: Count = None,
    prompt_tokens: Count = None,
    since: Since = None,
    until: Since = None,
    disturbed: bool = False,
) -> Response:
    """Return a metric over time, its level changes and their causes."""

    def rows() -> list[dict[str, Any]]:
        series = measurements.trend(
            site.database,
            metric,
            since=since,
            until=until,
            model=model,
            variant=variant,
            target=target,
            toolchain=toolchain,
            node=node,
            batch=batch,
            prompt_tokens=prompt_tokens,
            disturbed=disturbed,
        )
        return [trend_rows.to_json(each) for each in series]

    return answer(request, site, rows)


@router.get("/targets")
def targets(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    every: Annotated[bool, Query(alias="all", description="Include targets that have been replaced.")] = False,
) -> Response:
    """List quoted numbers that results are compared with."""

    def rows() -> list[dict[str, Any]]:
        quoted = quoted_targets(site.database)
        return [target_rows.to_json(target) for target in (quoted if every else in_force(quoted))]

    return answer(request, site, rows)


@router.get("/nodes")
def nodes(request: Request, site: SiteOf, _: ReaderUser) -> Response:
    """List the recorded nodes and their devices."""
    return answer(request, site, lambda: machines.nodes(site.database))


@router.get("/events")
def events(
    request: Request,
    site: SiteOf,
    _: ReaderUser,
    job: Text = None,
    node: Text = None,
    since: Since = None,
    limit: Limit = 100,
) -> Response:
    """List what happened, the latest events, in the order of time."""
    wanted = EventFilter(job, node, _time(since), limit=limit)
    return answer(request, site, lambda: [event_rows.to_json(row) for row in read_events(site.database, wanted)])


@router.get("/usage")
def usage(request: Request, site: SiteOf, _: ReaderUser, by: Text = "user", since: Since = "30d") -> Response:
    """Sum up what attempts cost, by user, model, stage, node or job."""
    groups, begin = usage_rows.parse_groups(by or "user"), _time(since or "30d")
    assert begin is not None
    return answer(
        request, site, lambda: usage_rows.sum_costs(attempt_costs(site.database, begin, datetime.now(UTC)), groups)
    )


def _time(text: str | None) -> datetime | None:
    return times.parse_time(text, datetime.now(UTC), "since") if text else None
