"""A report's tables, for whichever form they are given in. Pure."""

from collections import Counter
from datetime import datetime

from orchestrator.output import count, quantity, size
from orchestrator.reporting.changes import LEAST_SHIFT, verdict
from orchestrator.reporting.collecting import Report
from orchestrator.showing import matrix_view, pivoting
from orchestrator.showing.forms import Shown
from orchestrator.showing.workloads import workload_text

INTRODUCTION = "Written by haloctl from its database; every number has its samples and its context there."


def summary(report: Report) -> str:
    """How many cells say what, in a line."""
    verdicts = Counter(verdict(cell).partition(" ")[0] for row in report.rows for cell in row.stages.values())
    counted = [f"{verdicts[word]} {word}" for word in ("PASS", "FAIL") if verdicts[word]]
    others = [f"{verdicts['']} without a verdict"] if verdicts[""] else []
    changed = count(len(report.changed), "verdict")
    return f"{', '.join([*counted, *others]) or 'nothing yet'}; {changed} changed {since_text(report)}."


def minute(time: datetime) -> str:
    """A time with its zone: a page is read elsewhere than it is written."""
    return f"{time.astimezone():%Y-%m-%d %H:%M %Z}"


def since_text(report: Report) -> str:
    """`since 2026-11-20 08:00 UTC`, and why since then where nobody knows by himself."""
    time = f"since {minute(report.since)}"
    return f"{time}, as there was no report before" if report.is_first else time


def matrix(report: Report) -> Shown:
    """The verdicts."""
    view = matrix_view.view(report.rows)
    return Shown(view.columns, view.rows)


def matrix_notes(report: Report) -> list[str]:
    """What is to be said of them, but for failures, which have a part of their own."""
    return [text for text in matrix_view.notes(report.rows) if not text.startswith("FAIL ")]


def benchmark(report: Report) -> Shown:
    """TTFT and ITL by date."""
    return pivoting.shown(report.benchmark)


def benchmark_notes(report: Report) -> list[str]:
    """What is to be said of it; the newest dates are enough."""
    notes = [text for text in pivoting.notes(report.benchmark) if "--columns" not in text]
    return [*notes, *([pivoting.disturbed_note(report.disturbed)] if report.disturbed else [])]


def changes(report: Report) -> Shown:
    """Verdicts that are others."""
    rows = [(one.variant, one.target, one.stage, one.was or "none", one.now, one.task) for one in report.changed]
    return Shown(("variant", "target", "stage", "was", "is", "task"), rows)


def shifts(report: Report) -> Shown:
    """Numbers that went up or down."""
    rows = [
        (
            one.variant, one.target, workload_text(one.workload), one.metric,
            quantity(one.was, one.unit), quantity(one.now, one.unit), f"{(one.ratio - 1) * 100:+.1f}%",
        )
        for one in report.shifted
    ]  # fmt: skip
    return Shown(("variant", "target", "workload", "metric", "was", "is", "change"), rows, ("was", "is", "change"))


def shift_note() -> str:
    """What is to be said of them."""
    return f"numbers that moved by {LEAST_SHIFT:.0%} or more; whether that is more than noise tells `haloctl compare`"


def files(report: Report) -> Shown:
    """Files of the newest verdicts."""
    rows = [
        (
            one.variant, one.target, one.file.name, one.file.kind, size(one.file.size_bytes), one.file.sha256[:16],
            one.task,
        )
        for one in report.files
    ]  # fmt: skip
    return Shown(("variant", "target", "file", "kind", "size", "sha256", "task"), rows, ("size",))
