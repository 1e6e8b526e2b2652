"""Answers from the database of this machine's settings."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from db.reads import artifact_refs
from db.reads.matrix import matrix
from db.reads.results import artifacts, results
from db.writes.targets import in_force, quoted_targets
from orchestrator import times
from orchestrator.answers import jobs, machines, measurements, pages
from orchestrator.client.answers import Row, SubmitRequest
from orchestrator.context import open_context
from orchestrator.submission import plan_text, preparation
from orchestrator.submission.readable_folders import ANYWHERE
from orchestrator.submission.submit_options import SubmitOptions, parse_cache_options
from orchestrator.views import comparison_rows, log_reader, matrix_view, rows, target_rows, trend_rows


class LocalAnswers:
    """The database, opened until `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._context = self._stack.enter_context(open_context())
        self._database = self._context.database

    def close(self) -> None:
        """Close the database."""
        self._stack.close()

    def jobs(self, limit: int) -> list[Row]:
        """Return the newest jobs."""
        return pages.jobs(self._database, limit=limit).rows

    def job(self, name: str) -> Row:
        """Return a job with its tasks."""
        return jobs.show_job(self._database, name)

    def task(self, name: str) -> Row:
        """Return a task with its attempts."""
        return jobs.show_task(self._database, name)

    def why(self, name: str) -> Row:
        """Return why a task ran or did not."""
        return jobs.why(self._database, name)

    def matrix(self, **filters: Any) -> list[Row]:
        """Return the matrix."""
        return matrix_view.to_json(matrix(self._database, **filters))

    def results(self, limit: int | None, **filters: Any) -> list[Row]:
        """Return measurements, newest first."""
        since = filters.pop("since", None)
        begin = times.parse_time(since, datetime.now(UTC), "since") if since else None
        return [rows.result_to_json(row) for row in results(self._database, limit=limit, since=begin, **filters)]

    def compare(self, old: str, new: str, **options: Any) -> list[Row]:
        """Compare two selections of runs."""
        margin, each_device = options.pop("margin", 2.0), options.pop("each_device", False)
        sides = measurements.parse_sides(old, new, **options)
        compared = measurements.compare(self._database, sides, margin=margin, each_device=each_device)
        return [comparison_rows.to_json(comparison) for comparison in compared]

    def trend(self, metric: str, **options: Any) -> list[Row]:
        """Return the series of a metric."""
        return [trend_rows.to_json(series) for series in measurements.trend(self._database, metric, **options)]

    def targets(self) -> list[Row]:
        """Return the targets in force."""
        return [target_rows.to_json(target) for target in in_force(quoted_targets(self._database))]

    def nodes(self) -> list[Row]:
        """Return the recorded nodes."""
        return machines.nodes(self._database)

    def artifacts(self, limit: int | None, **filters: Any) -> list[Row]:
        """Return files that tasks made, newest first."""
        address = self._context.artifacts.address
        made = artifacts(self._database, limit=limit, **filters)
        return [rows.artifact_to_json(row, address(row.sha256)) for row in made]

    def plan(self, request: SubmitRequest) -> Row:
        """Return the tasks of a job without storing it."""
        return plan_text.dry_run_json(self._prepare(request))

    def submit(self, request: SubmitRequest) -> str:
        """Store a job; return its id."""
        cached = parse_cache_options(
            cache=request.cache, start=request.start, reuse_measurements=request.reuse_measurements
        )
        prepared = self._prepare(request)
        return preparation.store_job(self._context.store, prepared.spec, prepared.model, prepared.plan, cached)

    def _prepare(self, request: SubmitRequest) -> preparation.PreparedJob:
        options, settings = SubmitOptions(request.priority, start=request.start), self._context.settings
        if request.file:
            return preparation.prepare(request.file, settings, options)
        return preparation.prepare_text(request.text, ANYWHERE, settings, options)

    def cancel(self, name: str) -> list[str]:
        """Cancel a job or a task; return the tasks. Whoever leads ends what runs."""
        return self._context.store.request_cancel(name)

    def retry(self, name: str) -> list[str]:
        """Queue what failed again; return the tasks."""
        return self._context.store.retry(name)

    def log(self, name: str, *, follow: bool) -> Iterator[str]:
        """Yield the log of a task or an attempt."""
        return log_reader.read_log(self._context, name, follow=follow, notify=lambda text: None)

    def download(self, name: str, path: Path) -> None:
        """Fetch a file into a new one, verified."""
        self._context.artifacts.get(artifact_refs.find_artifact(self._database, name), path)

    def wait(self, job: str, timeout_s: float | None) -> None:
        """Return when nothing of a job can run any more, or after a time; it runs here if no head ever led."""
        from orchestrator.follow.following import embedded, follow
        from orchestrator.interrupts import Interrupts

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        loop = embedded(self._context)
        try:
            follow(self._context, loop, job, Interrupts(), lambda tasks: None, deadline)
        finally:
            loop.close()
