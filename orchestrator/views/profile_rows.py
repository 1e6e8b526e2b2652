"""Profiles of programs, and what differs between two, as tables and as JSON. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.analysis.profile_changes import KernelDifference, ProfileChange
from orchestrator.formatting import format_count
from orchestrator.tables import TextTable
from workers.llm.kernels.profile_table import COLUMNS, LEGEND, cells_of
from workers.llm.kernels.table import KERNEL, label

Report = Mapping[str, Any]  #: profile.json, as workers.llm.programs.profile writes it
CHANGE_COLUMNS = ("difference", "% of all", "old us", "new us")


def build_table(report: Report, entry: str, top: int) -> TextTable:
    """Return the kernels of an entry point with the most to win; 0 for all."""
    rows = report["entries"][entry]["kernels"]
    shown = rows[:top] if top else rows
    left = len(rows) - len(shown)
    notes = [f"{format_count(left, 'more kernel')}: --top 0 shows all"] if left else []
    return TextTable([*COLUMNS, KERNEL], cells_of(report["entries"][entry], shown), COLUMNS, notes)


def legend(report: Report) -> list[str]:
    """Return what the columns mean, what measured, and whose peaks floors are of."""
    return [*LEGEND.splitlines(), f"collector: {report['collector']}; peaks: {report['peaks']['source']}"]


def change_to_json(change: ProfileChange) -> dict[str, Any]:
    """Return the differences of an entry point for programs."""
    kernels = [{**asdict(each), "difference_us": each.difference_us} for each in change.kernels]
    return {"entry": change.entry, "times_ms": dict(change.times_ms), "kernels": kernels}


def change_summary(change: ProfileChange) -> str:
    """Return by how much a call differs, and how much of that is in kernels."""
    parts = [
        f"{name} {old:.4g} -> {new:.4g} ms ({round(new - old, 6) + 0.0:+.3g})"
        for name, (old, new) in zip(("a call", "in kernels", "outside"), change.times_ms.values(), strict=True)
    ]
    return f"{change.entry}: {', '.join(parts)}"


def build_change_table(change: ProfileChange, top: int) -> TextTable:
    """Return the kernels that differ most; 0 for all."""
    total_us = 1e3 * (change.times_ms["wall_ms"][1] - change.times_ms["wall_ms"][0])
    shown = change.kernels[:top] if top else change.kernels
    lines = [_change_cells(each, total_us) for each in shown]
    left = len(change.kernels) - len(shown)
    notes = [f"{format_count(left, 'more kernel')}: --top 0 shows all"] if left else []
    return TextTable((*CHANGE_COLUMNS, KERNEL), lines, CHANGE_COLUMNS, notes)


def _change_cells(change: KernelDifference, total_us: float) -> tuple[str, ...]:
    share = f"{100 * change.difference_us / total_us:.0f}" if total_us else ""
    old, new = ("" if us is None else f"{us:.1f}" for us in (change.old_us, change.new_us))
    name = label(change.kernel)
    kind = "new: " if change.old_us is None else "gone: " if change.new_us is None else ""
    return f"{change.difference_us:+.1f}", share, old, new, kind + name
