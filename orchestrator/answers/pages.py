"""Long lists in pages, each with the key of its last row: what is added meanwhile moves no row to another page."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from db.connection.engine import Database
from db.reads import reports
from db.reads.results import artifacts as read_artifacts
from db.reads.results import results as read_results
from jobs.errors import BadSetting
from orchestrator.views import rows

T = TypeVar("T")

RESULT_KEY = re.compile(r"(\d{1,18})\.(\d{1,9})", re.ASCII)
ARTIFACT_KEY = re.compile(r"([0-9a-f]{8}(?:-\d{1,9}){2})/(.{1,255})", re.ASCII)


@dataclass(frozen=True)
class Page:
    """Rows, and the key of the page that follows; None: these are the last ones."""

    rows: list[dict[str, Any]]
    next: str | None


def jobs(database: Database, *, limit: int, after: str | None = None, toolchain: str | None = None) -> Page:
    """Return jobs, newest first. Raises NotFound for a key that no job has."""
    newest = reports.jobs(database, limit + 1, toolchain, after)
    return _page(newest, limit, rows.job_to_json, lambda job: job.id)


def results(
    database: Database, *, limit: int, after: str | None = None, since: datetime | None = None, **filters: str | None
) -> Page:
    """Return measurements, newest first. Raises BadSetting, NotFound, AmbiguousId."""
    key = _parsed(RESULT_KEY, after)
    place = (int(key[1]), int(key[2])) if key else None
    measured = read_results(database, limit=limit + 1, after=place, since=since, **filters)
    return _page(measured, limit, rows.result_to_json, lambda row: f"{row.id}.{row.position}")


def artifacts(
    database: Database, address: Callable[[str], str], *, limit: int, after: str | None = None, **filters: str | None
) -> Page:
    """Return artifacts, newest first; `address` says where a sha256 lies. Raises BadSetting, NotFound, AmbiguousId."""
    key = _parsed(ARTIFACT_KEY, after)
    made = read_artifacts(database, limit=limit + 1, after=(key[1], key[2]) if key else None, **filters)
    return _page(
        made,
        limit,
        lambda row: rows.artifact_to_json(row, address(row.sha256)),
        lambda row: f"{row.attempt}/{row.name}",
    )


def _parsed(pattern: re.Pattern[str], key: str | None) -> re.Match[str] | None:
    match = pattern.fullmatch(key) if key is not None else None
    if key is not None and match is None:
        raise BadSetting("after", "should be the key that the page before ended with")
    return match


def _page(
    selected: Sequence[T], limit: int, to_json: Callable[[T], dict[str, Any]], key_of: Callable[[T], str]
) -> Page:
    """Return a page of `limit` rows from one row more, which tells whether others follow."""
    shown = selected[:limit]
    return Page([to_json(row) for row in shown], key_of(shown[-1]) if len(selected) > limit else None)
