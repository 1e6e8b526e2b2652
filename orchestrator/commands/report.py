"""`haloctl report`."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.reporting.collecting import Report

SUFFIXES = (".html", ".htm", ".md")


def report(
    output: list[Path] = typer.Option(
        [],
        "--output",
        "-o",
        help="Write it to this file: .html (with plots) or .md; may be given twice.",
        dir_okay=False,
    ),
    since: str = typer.Option(
        None, "--since", help="From when on changes are told: a date, a time or an age; without it the last report."
    ),
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
) -> None:
    """Write the whole page: verdicts, timings by date beside the target, what changed, failures, files.

    Markdown on stdout, or files. A report that goes to files without filters is remembered: the next one tells what
    changed since.
    """
    import getpass
    from datetime import UTC, datetime

    from db.reported import record_report
    from orchestrator import output as answer
    from orchestrator.context import opened
    from orchestrator.reporting import markdown
    from orchestrator.reporting.collecting import Filters, collect
    from orchestrator.showing import rows

    _expect_suffixes(output)
    now, filters = datetime.now(UTC), Filters(model, variant, target)
    with opened() as context:
        found = collect(context.database, now, rows.point_in_time(since, now) if since else None, filters)
        if not output:
            answer.raw(markdown.page(found))
            return
        for file in output:
            _write(file, markdown.page(found) if file.suffix == ".md" else _html(found))
            answer.note(f"written: {file}")
        if not filters.text:
            record_report(context.database, now, getpass.getuser())


def _html(found: "Report") -> str:
    from orchestrator.reporting import html

    return html.page(found)


def _expect_suffixes(files: list[Path]) -> None:
    from jobs.errors import BadSetting

    for file in files:
        if file.suffix not in SUFFIXES:
            raise BadSetting("--output", f"{file} should end with .html or .md")


def _write(file: Path, text: str) -> None:
    """All of it or nothing: a page that somebody serves is never half."""
    from orchestrator.showing.forms import writing

    partial = file.with_name(f".{file.name}.partial")
    with writing(file):
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
