"""Kernels of two compilations are paired by what they compute, whatever their numbers are."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from orchestrator.analysis.kernel_changes import compare_reports
from orchestrator.views.kernel_rows import build_change_table, build_table, change_summary, select_entries
from workers.llm.kernels.table import WIDTH, label, short_number, to_text

MATMUL, OTHER = (
    "prefill_bs1_t64.layer0_dispatch_{}_matmul_64x128x128_f16xf16xf32",
    "decode_dispatch_{}_reduction_64_f32",
)

EMPTY: Mapping[str, dict[str, Any]] = MappingProxyType({})


def kernel(kind: str = "matmul", flops: float = 2e6, moved: float = 1e5, **facts: Any) -> dict[str, Any]:
    """A row of a report for a GPU."""
    return {
        "kind": kind,
        "flops": flops,
        "other_ops": 0.0,
        "read_bytes": moved,
        "written_bytes": 0.0,
        "operand": "f16",
        "is_dynamic": False,
        "floor_us": moved / 5.3e6,
        "bound": "memory",
        "workgroups": 304,
        "pipeline": "TileAndFuse",
        "lowering": "workgroup = [64, 64, 0]",
        "instructions": 400,
        "vgpr": 140,
        "agpr": 0,
        "sgpr": 22,
        "spills": 0,
        "lds_bytes": 18432,
        "scratch_bytes": 0,
        "threads": 256,
        "waves_per_simd": 3,
        "mfma": {"v_mfma_f32_16x16x16_f16": 96},
        **facts,
    }


def report(
    calls: dict[str, int], kernels: Mapping[str, dict[str, Any]] = EMPTY, entry: str = "prefill_bs1_t64"
) -> dict[str, Any]:
    """A report with one entry point; kernels that are not given are alike."""
    rows = {name: kernels.get(name, kernel()) for name in calls}
    moved = sum(rows[name]["read_bytes"] * count for name, count in calls.items())
    facts = {
        "devices": 1,
        "dispatches": sum(calls.values()),
        "kernels": len(calls),
        "flops": 1e9,
        "bytes": moved,
        "floor_ms": 1.0,
        "launch_ms": 0.1,
        "copies": 0,
        "copied_bytes": 0,
        "few_workgroups": 0,
        "spills": 0,
        "min_waves": 3,
        "mfma": 96,
        "dynamic_kernels": 0,
        "link_bytes": 0,
        "link_steps": 0,
        "link_floor_ms": 0.0,
        "links": [],
        "calls": calls,
    }
    return {"format": 1, "peaks": {"source": "s", "compute_units": 304}, "entries": {entry: facts}, "kernels": rows}


def test_equal_dispatches_with_other_numbers_do_not_differ() -> None:
    old, new = report({MATMUL.format(1): 4, OTHER.format(2): 1}), report({MATMUL.format(3): 4, OTHER.format(7): 1})
    (change,) = compare_reports(old, new)
    assert (change.paired, change.kernels) == (2, ())
    assert change_summary(change) == ["prefill_bs1_t64: 0 of 2 kernels that both have differ"]


def test_what_a_kernel_takes_now_stands_beside_what_it_took() -> None:
    name = MATMUL.format(1)
    worse = kernel(vgpr=190, waves_per_simd=2, spills=12, mfma={}, instructions=404, lowering="workgroup = [8, 8, 0]")
    (change,) = compare_reports(report({name: 4}), report({name: 4}, {name: worse}))
    ((shown,),) = (build_change_table(change, 0).rows,)
    assert shown[1:] == (
        *("changed", "matmul_64x128x128"),
        "VGPR 140 -> 190, spill 0 -> 12, waves 3 -> 2, MFMA 96 -> 0, config",  # 1% more code says nothing
    )


def test_dispatches_that_only_one_has_are_new_or_gone() -> None:
    old, new = report({MATMUL.format(1): 4}), report({MATMUL.format(1): 4, OTHER.format(2): 2})
    (added,) = compare_reports(old, new)[0].kernels
    (gone,) = compare_reports(new, old)[0].kernels
    assert (added.kind, gone.kind, added.kernel["kernel"]) == ("new", "gone", OTHER.format(2))
    assert "dispatches 4 -> 6" in change_summary(compare_reports(old, new)[0])[1]


def test_a_contraction_is_found_again_under_another_name() -> None:
    """`matvec_like_128x128` of one set of flags is `matmul_1x128x128` of another."""
    other = "prefill_bs1_t64_dispatch_0_matvec_like_64x128_f16"
    (change,) = compare_reports(report({MATMUL.format(1): 4}), report({other: 4}))
    assert (change.paired, [each.kind for each in change.kernels]) == (1, [])


def test_of_equal_dispatches_the_first_is_the_first() -> None:
    names = [MATMUL.format(number) for number in (2, 10)]
    rows = {names[0]: kernel(vgpr=100), names[1]: kernel(vgpr=200)}
    (change,) = compare_reports(report(dict.fromkeys(names, 1), rows), report(dict.fromkeys(names, 1), rows))
    assert change.kernels == ()


def test_tables_are_no_wider_than_a_hundred_columns() -> None:
    name = "prefill_bs4_t2048.layer0_dispatch_10_attention_4x8x4x2048x128x128x2048_f16"
    wide = kernel(flops=2.7e11, moved=1.24e9, workgroups=1048576, vgpr=512, spills=1385, floor_us=123456.7)
    shown = report({name: 126}, {name: wide}, "prefill_bs4_t2048")
    shown["entries"]["prefill_bs4_t2048"] |= {
        "devices": 8, "link_bytes": 949e9, "link_steps": 508, "link_floor_ms": 2118.1,
        "links": [{"from": 0, "to": 7, "bytes": 67.9e9, "transfers": 254}],
    }  # fmt: skip
    assert max(map(len, to_text(shown).splitlines())) <= WIDTH
    assert build_table(shown, "prefill_bs4_t2048", 1).width <= WIDTH
    assert "links: 949GB in 508 steps, at least 2118 ms; 1 in use, most 0 to 7: 67.9GB" in to_text(shown)


def test_an_entry_point_is_chosen_by_how_its_name_begins() -> None:
    shown = select_entries(report({MATMUL.format(1): 4}), "pre")
    assert (list(shown["entries"]), list(shown["kernels"])) == (["prefill_bs1_t64"], [MATMUL.format(1)])


def test_names_say_what_a_dispatch_computes() -> None:
    assert label("decode_bs4_c2176.layer0_dispatch_7_scatter_8704x8x2x64xf16_dispatch_tensor_store") == (
        "scatter_8704x8x2x64xf16"
    )
    assert label("main_dispatch_0") == "main_dispatch_0"
    assert [short_number(value) for value in (0, 64, 999.6, 1.5e3, 2.65e9)] == ["0", "64", "1.00k", "1.50k", "2.65G"]
