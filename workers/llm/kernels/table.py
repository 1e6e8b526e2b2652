"""The report on a program's kernels as people read it, in at most 100 columns."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 100
NUMBER = re.compile(r".*_dispatch_\d+(?:_|$)")  #: what stands in front of what a dispatch computes
TYPES = re.compile(r"_(?:[if]\d+|bf16|f8\w+)(?:x(?:[if]\d+|bf16|f8\w+))*$")
STORE = re.compile(r"_dispatch_tensor_store$")
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

#: Columns, each with what it shows of a kernel; those that no kernel has are left out.
COLUMNS: dict[str, str] = {
    "us": "floor_us",
    "%": "share",
    "calls": "calls",
    "flop": "flops",
    "bytes": "bytes",
    "by": "bound",
    "grps": "workgroups",
    "VGPR": "vgpr",
    "spill": "spills",
    "LDS": "lds_bytes",
    "wav": "waves_per_simd",
    "MFMA": "mfma",
    "code": "instructions",
}
CODE = "code"  #: where there are registers, they say more
GAP = "  "
OPTIONAL = frozenset({"VGPR", "spill", "LDS", "wav", "MFMA", "code"})
KERNEL = "kernel"
LEGEND = (
    "us: floor of all calls. flop, bytes: of one call. by: what bounds it, flop or memory.\n"
    "grps: workgroups. LDS: bytes of each. wav: waves that a SIMD holds at once. code: instructions."
)


def label(kernel: str) -> str:
    """Return what a dispatch computes, as its name says: `matmul_8192x4096x14336`."""
    short = NUMBER.sub("", kernel)
    return TYPES.sub("", STORE.sub("", short)) or kernel


def short_number(value: float) -> str:
    """Return three digits and a unit: 23.5M."""
    for size, unit in UNITS:
        if abs(value) >= 0.9995 * size:
            return f"{_three_digits(value / size)}{unit}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    if value == round(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def rows_of(report: Mapping[str, Any], entry: str) -> list[dict[str, Any]]:
    """Return the kernels of an entry point with its calls, those with the largest floor first."""
    facts = report["entries"][entry]
    rows = [
        {
            "kernel": name,
            "calls": calls,
            **kernel,
            "floor_us": kernel["floor_us"] * calls,
            "flops": kernel["flops"] + kernel["other_ops"],
            "bytes": kernel["read_bytes"] + kernel["written_bytes"],
            "mfma": sum(kernel["mfma"].values()),
        }
        for name, calls in facts["calls"].items()
        if (kernel := report["kernels"].get(name))
    ]
    total_us = sum(row["floor_us"] for row in rows) or 1.0
    for row in rows:
        row["share"] = 100 * row["floor_us"] / total_us
    return sorted(rows, key=lambda row: (-row["floor_us"], row["kernel"]))


def table_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns that say something about these kernels, and the cells; the last is what a kernel computes."""
    has_registers = any(row.get("vgpr") for row in rows)
    columns = [
        name
        for name, key in COLUMNS.items()
        if (name not in OPTIONAL or any(row.get(key) for row in rows)) and not (name == CODE and has_registers)
    ]
    cells = [[_cell(name, row.get(COLUMNS[name]), row) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    label_width = WIDTH - sum(widths) - len(GAP) * len(widths)
    return columns, [[*line, _cut(label(row["kernel"]), label_width)] for line, row in zip(cells, rows, strict=True)]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 2]}.."


def _cell(column: str, value: Any, row: Mapping[str, Any]) -> str:
    if value is None:
        return ""
    if column == "us":
        return "?" if row["is_dynamic"] else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
    if column == "%":
        return f"{value:.0f}"
    if column == "by":
        return "f" if value == "compute" else "m"
    if column == "LDS":
        return f"{value / 1e3:.0f}k" if value >= 1000 else str(value)
    return short_number(value) if column in ("flop", "bytes", "grps", "code") else str(value)


def summary_of(name: str, entry: Mapping[str, Any], peaks: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about an entry point above its kernels."""
    on = f" on {entry['devices']} devices" if entry["devices"] > 1 else ""
    yield f"{name}: {entry['dispatches']} dispatches of {entry['kernels']} kernels{on}"
    of = " of the busiest device" if on else ""
    yield (
        f"  floor {_ms(entry['floor_ms'])}{of}: {short_number(entry['flops'])} flop, "
        f"{short_number(entry['bytes'])}B moved; launches {_ms(entry['launch_ms'])}"
    )
    remarks = [f"{entry['few_workgroups']} dispatches fill fewer than {peaks['compute_units']} compute units"]
    remarks += [f"{entry['spills']} registers spilled"] if "spills" in entry else []
    remarks += [f"fewest waves {entry['min_waves']}"] if "min_waves" in entry else []
    remarks += [f"{entry['copies']} copies of {short_number(entry['copied_bytes'])}B"] if entry["copies"] else []
    remarks += [f"{entry['dynamic_kernels']} kernels of unknown size"] if entry["dynamic_kernels"] else []
    yield from textwrap.wrap("; ".join(remarks), WIDTH, initial_indent="  ", subsequent_indent="  ")
    if entry["links"]:
        busiest = max(entry["links"], key=lambda link: link["bytes"])
        yield (
            f"  links: {short_number(entry['link_bytes'])}B in {entry['link_steps']} steps, at least "
            f"{_ms(entry['link_floor_ms'])}; {len(entry['links'])} in use, most {busiest['from']} to {busiest['to']}: "
            f"{short_number(busiest['bytes'])}B"
        )


def _ms(value: float) -> str:
    return f"{_three_digits(value)} ms" if value >= 0.1 else f"{_three_digits(value * 1e3)} us"


def to_text(report: Mapping[str, Any]) -> str:
    """Return the whole report as text."""
    lines = [f"peaks: {report['peaks']['source']}", LEGEND]
    for name, entry in report["entries"].items():
        rows = rows_of(report, name)
        columns, cells = table_of(rows)
        lines += ["", *summary_of(name, entry, report["peaks"])]
        lines += _aligned([[*columns, KERNEL], *cells])
    return "\n".join(lines) + "\n"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield GAP.join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]])
