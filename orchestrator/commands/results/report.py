"""`haloctl report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.reports.report import StatusReport

SUFFIXES = (".html", ".htm", ".md")


def report(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", help="Write this file: .html (with plots) or .md; may be repeated.", dir_okay=False
        ),
    ] = None,
    since: options.Since = None,
    model: options.Model = None,
    variant: options.Variant = None,
    target: options.Target = None,
) -> None:
    """Write a status page: results, timings, changes, files.

    It prints Markdown by default. Changes are those since the last report, or with --since those since then. A report
    that is written to files without filters counts as the last one.
    """
    from datetime import UTC, datetime

    from db.reads.report_times import record_report
    from db.schema.actors import current_actor
    from jobs.errors import DatabaseReadOnly
    from orchestrator import output, times
    from orchestrator.context import open_context
    from orchestrator.reports import markdown
    from orchestrator.reports.report import ReportFilters, collect_report

    _check_suffixes(files or [])
    now, filters = datetime.now(UTC), ReportFilters(model, variant, target)
    with open_context() as context:
        page = collect_report(context.database, now, times.parse_time(since, now) if since else None, filters)
        if not files:
            output.print_text(markdown.page(page))
            return
        for file in files:
            _write(file, page)
            output.print_message(f"written: {file}")
        if not filters.text:
            try:
                record_report(context.database, now, current_actor())
            except DatabaseReadOnly:
                output.print_message("not counted as the last report: you may only read the database")


def _check_suffixes(files: list[Path]) -> None:
    from jobs.errors import BadSetting

    for file in files:
        if file.suffix not in SUFFIXES:
            raise BadSetting("--output", f"{file} should end with .html or .md")


def _write(file: Path, report: "StatusReport") -> None:
    """Write the page atomically, because a web server may be serving the file."""
    from orchestrator.reports import html, markdown
    from orchestrator.views.formats import writing

    partial = file.with_name(f".{file.name}.partial")
    with writing(file):
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as stream:  # a new file, so that nobody's link leads elsewhere
            stream.write(markdown.page(report) if file.suffix == ".md" else html.page(report))
        partial.replace(file)
