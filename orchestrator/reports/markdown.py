"""A report as Markdown, for a wiki. Pure."""

import re
from collections.abc import Iterable, Sequence

from jobs.plain_text import plain_log
from orchestrator.reports import sections
from orchestrator.reports.report import FailedTask, StatusReport
from orchestrator.tables import TextTable
from orchestrator.views.formats import markdown_list, markdown_table, markdown_text

BACKTICKS = re.compile(r"`+")


def page(report: StatusReport) -> str:
    """Render the page."""
    about = f", {report.filters.text}" if report.filters.text else ""
    parts = [
        f"# Status of {sections.minute(report.at)}{markdown_text(about)}",
        markdown_text(sections.summary(report)),
        sections.INTRODUCTION,
        "## Numerics",
        *_table(sections.matrix(report), "Nothing in the matrix yet."),
        *_list(sections.matrix_notes(report)),
        "## Benchmark",
        *_table(sections.benchmark(report), "Nothing was measured yet."),
        *_list(sections.benchmark_notes(report)),
        f"## What changed {sections.since_text(report)}",
        *_table(sections.changes(report), "No verdict changed."),
        *([markdown_table(sections.shifts(report)), sections.shift_note()] if report.shifted else []),
        "## Open failures",
        *([part for failure in report.failures for part in _failure(failure)] or ["None."]),
        *([f"{report.failures_left_out} more are left out."] if report.failures_left_out else []),
        "## Artifacts",
        *_table(sections.files(report), "None."),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _table(shown: TextTable, nothing: str) -> list[str]:
    return [markdown_table(shown) if shown.rows else nothing]


def _list(texts: Sequence[str]) -> list[str]:
    return [markdown_list(texts).strip()] if texts else []


def _failure(failed: FailedTask) -> Iterable[str]:
    yield f"### {markdown_text(f'{failed.stage}: {failed.kind} ({failed.task})')}"
    yield markdown_text(f"{failed.message}: {'; '.join(failed.variants)}")
    if failed.log_tail:
        fence = "`" * max(3, *(len(backticks) + 1 for backticks in BACKTICKS.findall(failed.log_tail)), 0)
        yield f"{fence}\n{plain_log(failed.log_tail)}\n{fence}"
