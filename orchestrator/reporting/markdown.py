"""A report as Markdown, for a wiki. Pure."""

import re
from collections.abc import Iterable, Sequence

from orchestrator.reporting import words
from orchestrator.reporting.collecting import FailedTask, Report
from orchestrator.showing.forms import Shown, markdown_list, markdown_table, markdown_text

BACKTICKS = re.compile(r"`+")


def page(report: Report) -> str:
    """All of it."""
    about = f", {report.filters.text}" if report.filters.text else ""
    parts = [
        f"# Status of {words.minute(report.at)}{markdown_text(about)}",
        markdown_text(words.summary(report)),
        words.INTRODUCTION,
        "## Numerics",
        *_table(words.matrix(report), "Nothing in the matrix yet."),
        *_list(words.matrix_notes(report)),
        "## Benchmark",
        *_table(words.benchmark(report), "Nothing was measured yet."),
        *_list(words.benchmark_notes(report)),
        f"## What changed {words.since_text(report)}",
        *_table(words.changes(report), "No verdict is another."),
        *([markdown_table(words.shifts(report)), words.shift_note()] if report.shifted else []),
        "## Open failures",
        *([part for failure in report.failures for part in _failure(failure)] or ["None."]),
        *([f"{report.failures_left_out} more are left out."] if report.failures_left_out else []),
        "## Artifacts",
        *_table(words.files(report), "None."),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _table(shown: Shown, nothing: str) -> list[str]:
    return [markdown_table(shown) if shown.rows else nothing]


def _list(texts: Sequence[str]) -> list[str]:
    return [markdown_list(texts).strip()] if texts else []


def _failure(failed: FailedTask) -> Iterable[str]:
    yield f"### {markdown_text(f'{failed.stage}: {failed.kind} ({failed.task})')}"
    yield markdown_text(f"{failed.message}: {'; '.join(failed.variants)}")
    if failed.log_tail:
        fence = "`" * max(3, *(len(found) + 1 for found in BACKTICKS.findall(failed.log_tail)), 0)
        yield f"{fence}\n{failed.log_tail}\n{fence}"
