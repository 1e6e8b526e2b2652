"""What kernels took beside what they must take at least: where the time of an entry point goes, and what to win."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from workers.llm.kernels.collectors import KernelTime


def entry_profile(
    name: str, analysis: Mapping[str, Any], times: Sequence[KernelTime], runs: int, wall_ms: float
) -> dict[str, Any]:
    """Return the profile of an entry point that was called `runs` times.

    `wall_ms` is the time of one call without a profiler. Times are of one call, over all devices; `kernels_ms` is that
    of the busiest device, because devices work side by side.
    """
    entry = analysis["entries"][name]
    per_kernel: dict[str, float] = defaultdict(float)
    per_device: dict[int, float] = defaultdict(float)
    for time in times:
        if time.kernel in entry["calls"]:
            per_kernel[time.kernel] += time.total_us / runs
            per_device[time.device] += time.total_us / runs
    kernels_ms = max(per_device.values(), default=0.0) / 1e3
    return {
        "runs": runs,
        "wall_ms": wall_ms,
        "kernels_ms": kernels_ms,
        "outside_ms": wall_ms - kernels_ms,
        "floor_ms": entry["floor_ms"],
        "missing": sorted(set(entry["calls"]) - set(per_kernel)),
        "kernels": sorted(
            (_row(kernel, took_us, entry, analysis) for kernel, took_us in per_kernel.items()),
            key=lambda row: -row["to_win_us"],
        ),
    }


def _row(name: str, took_us: float, entry: Mapping[str, Any], analysis: Mapping[str, Any]) -> dict[str, Any]:
    kernel, calls = analysis["kernels"][name], entry["calls"][name]
    floor_us = kernel["floor_us"] * calls
    return {
        "kernel": name,
        "calls": calls,
        "us": took_us,
        "floor_us": floor_us,
        "to_win_us": took_us - floor_us,
        "flops": kernel["flops"] + kernel["other_ops"],
        "bytes": kernel["read_bytes"] + kernel["written_bytes"],
        **{key: kernel[key] for key in ("kind", "operand", "bound", "workgroups")},
    }
