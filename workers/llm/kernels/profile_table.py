"""The profile of a program as people read it, in at most 100 columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.llm.kernels.table import GAP, KERNEL, WIDTH, label, short_number

COLUMNS = ("us", "%", "calls", "floor", "% roof", "to win", "flop/s", "B/s")
LEGEND = (
    "us, floor, to win: of all calls on all devices. %: of the time of a call. % roof: floor of us;\n"
    "more than 100 on CPUs means caches. flop/s, B/s: what the kernel reached."
)


def summary_of(name: str, entry: Mapping[str, Any]) -> list[str]:
    """Return the lines about an entry point above its kernels."""
    percent = 100 * entry["floor_ms"] / entry["wall_ms"]
    lines = [
        f"{name}: {entry['wall_ms']:.4g} ms a call, {entry['kernels_ms']:.4g} ms of it in kernels, "
        f"{entry['outside_ms']:.4g} ms outside",
        f"  floor {entry['floor_ms']:.4g} ms: {percent:.0f}% of the roofline; {entry['runs']} calls profiled",
    ]
    if entry["missing"]:
        lines.append(f"  not seen: {len(entry['missing'])} kernels, such as {label(entry['missing'][0])}")
    return lines


def cells_of(entry: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the cells of kernels, the last one with what it computes."""
    wall_us = 1e3 * entry["wall_ms"]
    return [
        [
            f"{row['us']:.1f}",
            f"{100 * row['us'] / wall_us:.1f}",
            str(row["calls"]),
            f"{row['floor_us']:.1f}",
            f"{100 * row['floor_us'] / row['us']:.0f}" if row["us"] else "",
            f"{row['to_win_us']:.1f}",
            _rate(row["flops"], row),
            _rate(row["bytes"], row),
            label(row["kernel"]),
        ]
        for row in rows
    ]


def _rate(amount: float, row: Mapping[str, Any]) -> str:
    return short_number(1e6 * amount * row["calls"] / row["us"]) if row["us"] else ""


def to_text(report: Mapping[str, Any]) -> str:
    """Return the whole profile as text."""
    lines = [f"collector: {report['collector']}; peaks: {report['peaks']['source']}", *LEGEND.splitlines()]
    for name, entry in report["entries"].items():
        lines += ["", *summary_of(name, entry)]
        lines += _aligned([[*COLUMNS, KERNEL], *cells_of(entry, entry["kernels"])])
    return "\n".join(lines) + "\n"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield GAP.join([*cells, row[-1]])[:WIDTH]
