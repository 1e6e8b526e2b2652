"""Profiles beside floors, and a slow kernel that is found."""

from typing import Any

import pytest

from orchestrator.analysis.profile_changes import compare_profiles
from orchestrator.views.profile_rows import build_change_table, build_table, change_summary
from tests.unit.analysis.test_kernel_changes import MATMUL, OTHER, report
from workers.llm.kernels.collectors import KernelTime
from workers.llm.kernels.profile_report import entry_profile
from workers.llm.kernels.profile_table import to_text
from workers.llm.kernels.table import WIDTH

ENTRY = "prefill_bs1_t64"


def profile(matmul: int, matmul_us: float, wall_ms: float = 1.0) -> dict[str, Any]:
    """The profile of a program with a matmul of this number that is called four times, profiled in 20 runs."""
    analysis = report({MATMUL.format(matmul): 4, OTHER.format(9): 2})
    times = [
        KernelTime(MATMUL.format(matmul), 0, 80, matmul_us),
        KernelTime(OTHER.format(9), 0, 40, 10.0),
        KernelTime("load_dispatch_0", 0, 1, 999.0),  # of another function
    ]
    entry = entry_profile(ENTRY, analysis, times, 20, wall_ms)
    return {"collector": "ireeprof", "peaks": analysis["peaks"], "entries": {ENTRY: entry}}


def test_times_are_of_one_call_and_what_is_to_win_is_beyond_the_floor() -> None:
    entry = profile(1, 100.0)["entries"][ENTRY]
    assert [entry["kernels_ms"], entry["outside_ms"]] == pytest.approx([0.42, 0.58])
    assert entry["missing"] == []
    first, second = entry["kernels"]
    assert (first["kernel"], first["calls"]) == (MATMUL.format(1), 4)
    assert first["us"] == pytest.approx(400.0)
    assert first["to_win_us"] == first["us"] - first["floor_us"] > second["to_win_us"]


def test_of_several_devices_the_busiest_counts() -> None:
    analysis = report({MATMUL.format(1): 4})
    times = [KernelTime(MATMUL.format(1), device, 40, 100.0 * (device + 1)) for device in (0, 1)]
    entry = entry_profile(ENTRY, analysis, times, 20, 1.0)
    assert entry["kernels_ms"] == pytest.approx(0.4)
    assert entry["kernels"][0]["us"] == pytest.approx(600.0)


def test_a_planted_slow_kernel_accounts_for_the_difference() -> None:
    (change,) = compare_profiles(profile(1, 100.0, 1.0), profile(7, 150.0, 1.2))
    first, *others = change.kernels
    assert first.kernel == MATMUL.format(7)
    assert first.difference_us == pytest.approx(200.0)
    assert [other.difference_us for other in others] == [0.0]
    assert change_summary(change).endswith(
        "a call 1 -> 1.2 ms (+0.2), in kernels 0.42 -> 0.62 ms (+0.2), outside 0.58 -> 0.58 ms (+0)"
    )
    assert build_change_table(change, 1).rows == [("+200.0", "100", "400.0", "600.0", "matmul_64x128x128")]


def test_a_profile_is_no_wider_than_a_hundred_columns() -> None:
    shown = profile(1, 123456.7, 600.0)
    assert max(map(len, to_text(shown).splitlines()[1:])) <= WIDTH
    assert build_table(shown, ENTRY, 1).notes == ["1 more kernel: --top 0 shows all"]
