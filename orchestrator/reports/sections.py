"""The tables and notes of a report, for HTML and Markdown alike. Pure."""

from collections import Counter
from datetime import datetime

from orchestrator.formatting import format_bytes, format_count, format_quantity
from orchestrator.reports.changes import MIN_SHIFT, verdict
from orchestrator.reports.report import StatusReport
from orchestrator.tables import TextTable
from orchestrator.views import matrix_view, pivots
from orchestrator.workloads import workload_text

INTRODUCTION = "Written by haloctl from its database; every number has its samples and its context there."


def summary(report: StatusReport) -> str:
    """Return the number of cells with each verdict, in a line."""
    verdicts = Counter(verdict(cell).partition(" ")[0] for row in report.rows for cell in row.stages.values())
    counted = [f"{verdicts[word]} {word}" for word in ("PASS", "FAIL") if verdicts[word]]
    others = [f"{verdicts['']} without a verdict"] if verdicts[""] else []
    changed = format_count(len(report.changed), "verdict")
    return f"{', '.join([*counted, *others]) or 'nothing yet'}; {changed} changed {since_text(report)}."


def minute(time: datetime) -> str:
    """Return a time with its zone: readers may be in another one."""
    return f"{time.astimezone():%Y-%m-%d %H:%M %Z}"


def since_text(report: StatusReport) -> str:
    """Return `since 2026-11-20 08:00 UTC`, with the reason in the first report."""
    time = f"since {minute(report.since)}"
    return f"{time}, as this is the first report" if report.is_first else time


def matrix(report: StatusReport) -> TextTable:
    """Return the matrix of verdicts."""
    table = matrix_view.to_table(report.rows)
    return TextTable(table.columns, table.rows)


def matrix_notes(report: StatusReport) -> list[str]:
    """Return the notes on the matrix, except for failures, which have their own section."""
    return [text for text in matrix_view.matrix_notes(report.rows) if not text.startswith("FAIL ")]


def benchmark(report: StatusReport) -> TextTable:
    """Return TTFT and ITL by date."""
    return pivots.to_table(report.benchmark)


def benchmark_notes(report: StatusReport) -> list[str]:
    """Return the notes on the benchmark table, except for dates that are not shown."""
    notes = [text for text in pivots.pivot_notes(report.benchmark) if "--columns" not in text]
    return [*notes, *([pivots.disturbed_note(report.disturbed)] if report.disturbed else [])]


def changes(report: StatusReport) -> TextTable:
    """Return the verdicts that changed."""
    rows = [
        (change.variant, change.target, change.stage, change.was or "none", change.now, change.task)
        for change in report.changed
    ]
    return TextTable(("variant", "target", "stage", "was", "is", "task"), rows)


def shifts(report: StatusReport) -> TextTable:
    """Return the metrics that went up or down."""
    rows = [
        (
            shift.variant, shift.target, workload_text(shift.workload), shift.metric,
            format_quantity(shift.was, shift.unit), format_quantity(shift.now, shift.unit),
            f"{(shift.ratio - 1) * 100:+.1f}%",
        )
        for shift in report.shifted
    ]  # fmt: skip
    return TextTable(("variant", "target", "workload", "metric", "was", "is", "change"), rows, ("was", "is", "change"))


def shift_note() -> str:
    """Return the note on the shifts."""
    return f"changes of {MIN_SHIFT:.0%} or more; `haloctl compare` tells whether they exceed noise"


def files(report: StatusReport) -> TextTable:
    """Return the artifacts of the newest verdicts."""
    rows = [
        (
            artifact.variant, artifact.target, artifact.file.name, artifact.file.kind,
            format_bytes(artifact.file.size_bytes), artifact.file.sha256[:16], artifact.task,
        )
        for artifact in report.files
    ]  # fmt: skip
    return TextTable(("variant", "target", "file", "kind", "size", "sha256", "task"), rows, ("size",))
