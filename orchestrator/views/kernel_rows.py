"""Kernels of a program, and the changes between two, as tables and as rows. Pure."""

import textwrap
from collections.abc import Mapping
from typing import Any

from jobs.errors import NotFound
from orchestrator.analysis.kernel_changes import EntryChange, KernelChange
from orchestrator.formatting import format_count
from orchestrator.tables import TextTable
from workers.llm.kernels.table import (
    KERNEL,
    LEGEND,
    WIDTH,
    label,
    rows_of,
    short_number,
    summary_of,
    table_of,
)

Report = Mapping[str, Any]  #: kernels.json, as workers.llm.programs.analyse writes it

BYTES = frozenset({"bytes", "LDS", "scratch"})
LONG = frozenset({"config"})  #: too long for a table; JSON has both


def entries_of(report: Report, entry: str | None) -> list[str]:
    """Return the entry points with this name or beginning; all without one. Raises NotFound."""
    names = [name for name in report["entries"] if entry is None or name.startswith(entry)]
    if not names:
        raise NotFound(f"entry point ({', '.join(report['entries'])})", str(entry))
    return names


def select_entries(report: Report, entry: str | None) -> dict[str, Any]:
    """Return the report with some of its entry points alone, and their kernels. Raises NotFound."""
    entries = {name: report["entries"][name] for name in entries_of(report, entry)}
    called = {kernel for facts in entries.values() for kernel in facts["calls"]}
    kernels = {name: kernel for name, kernel in report["kernels"].items() if name in called}
    return {**report, "entries": entries, "kernels": kernels}


def summary(report: Report, entry: str) -> list[str]:
    """Return the lines about an entry point."""
    return list(summary_of(entry, report["entries"][entry], report["peaks"]))


def build_table(report: Report, entry: str, top: int) -> TextTable:
    """Return the kernels of an entry point with the largest floors; 0 for all."""
    rows = rows_of(report, entry)
    shown = rows[:top] if top else rows
    columns, cells = table_of(shown)
    notes = []
    if len(shown) < len(rows):
        rest_us = sum(row["floor_us"] for row in rows[len(shown) :])
        notes = [f"{format_count(len(rows) - len(shown), 'more kernel')}, {rest_us:.1f} us: --top 0 shows all"]
    return TextTable([*columns, KERNEL], cells, columns, notes)


def legend(report: Report) -> list[str]:
    """Return what the columns mean, and whose peaks floors are of."""
    return [*LEGEND.splitlines(), f"peaks: {report['peaks']['source']}"]


def change_to_json(change: EntryChange) -> dict[str, Any]:
    """Return the changes of an entry point for programs."""
    return {
        "old": change.old_name,
        "new": change.new_name,
        "facts": {name: list(values) for name, values in change.facts.items()},
        "paired": change.paired,
        "kernels": [
            {
                "kind": kernel.kind,
                "old": kernel.old and kernel.old["kernel"],
                "new": kernel.new and kernel.new["kernel"],
                "floor_us": kernel.kernel["floor_us"],
                "changes": {name: list(values) for name, values in kernel.changes.items()},
            }
            for kernel in change.kernels
        ],
    }


def change_summary(change: EntryChange) -> list[str]:
    """Return the lines about an entry point of both: its sums that differ, and how many of its kernels do."""
    name = change.new_name if change.new_name == change.old_name else f"{change.old_name} -> {change.new_name}"
    sums = [_fact_change(fact, *values) for fact, values in change.facts.items() if values[0] != values[1]]
    changed = sum(kernel.kind == "changed" for kernel in change.kernels)
    return [
        f"{name}: {changed} of {format_count(change.paired, 'kernel')} that both have differ",
        *textwrap.wrap(", ".join(sums), WIDTH, initial_indent="  ", subsequent_indent="  "),
    ]


def build_change_table(change: EntryChange, top: int) -> TextTable:
    """Return the kernels that differ, those with the largest floor first; 0 for all."""
    shown = change.kernels[:top] if top else change.kernels
    lines = [
        (f"{kernel.kernel['floor_us']:.1f}", kernel.kind, label(kernel.kernel["kernel"]), _changes(kernel))
        for kernel in shown
    ]
    left = len(change.kernels) - len(shown)
    notes = [f"{format_count(left, 'more kernel')} differ: --top 0 shows all"] if left else []
    return TextTable(("floor us", "", KERNEL, "changes"), lines, ("floor us",), notes)


def _changes(change: KernelChange) -> str:
    if change.kind == "changed":
        return ", ".join(_fact_change(name, *values) for name, values in change.changes.items())
    kernel = change.kernel
    work = f"{short_number(kernel['flops'])} flop, {short_number(kernel['bytes'])}B"
    return f"{format_count(kernel['calls'], 'call')}, {work}"


def _fact_change(name: str, old: Any, new: Any) -> str:
    return name if name in LONG else f"{name} {_value(name, old)} -> {_value(name, new)}"


def _value(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "none"
    is_large = isinstance(value, float) or value >= 1e5
    return short_number(value) if is_large or name in BYTES else str(value)
