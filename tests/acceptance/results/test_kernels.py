"""What kernels take is asked, compared and gated without a device: programs that are compiled for MI300X."""

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import EVERYTHING

MATMUL = """{prelude}
module @matmul {{
  func.func @main(%left: tensor<512x512xf16>, %right: tensor<512x512xf16>) -> tensor<512x512xf32> {{
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<512x512xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<512x512xf32>) -> tensor<512x512xf32>
    %0 = linalg.matmul {config} ins(%left, %right : tensor<512x512xf16>, tensor<512x512xf16>)
      outs(%init : tensor<512x512xf32>) -> tensor<512x512xf32>
    return %0 : tensor<512x512xf32>
  }}
}}
"""
#: A tile of 256 x 256 for one wave, whose sums alone are more than all registers.
SPILLING = """
#config = #iree_gpu.lowering_config<{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>,
  promote_operands = [0, 1], reduction = [0, 0, 2], subgroup = [16, 16, 0], workgroup = [256, 256, 0]}>
#translation = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<TileAndFuse>
  workgroup_size = [64, 1, 1] subgroup_size = 64>
#info = #iree_codegen.compilation_info<lowering_config = #config, translation_info = #translation>
"""


def gated(haloctl: Haloctl, program: Path, text: str, *facts: str, **keys: Any) -> str:
    """Return a job file that compiles and analyses this program, with a gate."""
    program.write_text(text)
    return haloctl.job(
        name="gated",
        model=str(program),
        variants={"target": "mi300x"},
        stages=["export", "compile", "analyse"],
        gate={"metrics": list(facts), **keys},
    )


def test_a_planted_spill_fails_the_gate_and_the_two_programs_are_compared(fresh: Haloctl, tmp_path: Path) -> None:
    program, facts = tmp_path / "matmul.mlir", ("spills", "min_waves", "mfma", "bytes", "dispatches")
    variant = "matmul-FP16-TP1-given"
    good = fresh.run("submit", gated(fresh, program, MATMUL.format(prelude="", config=""), *facts), "--wait")
    assert good.code == 0, good.err
    assert "passes: there is nothing to compare it with yet" in good.out
    assert "main: 1 dispatches of 1 kernels" in fresh.answer("kernels", variant)
    (row,) = fresh.json("matrix")
    assert row["stages"]["analyse"]["state"] == "succeeded"

    worse = MATMUL.format(prelude=SPILLING, config="{compilation_info = #info}")
    done = fresh.run("submit", gated(fresh, program, worse, *facts), "--wait")
    assert done.code == 3, done.err
    assert "FAIL kernels_worse: call_spills 1" in done.out
    assert "registers, where the last good has 0 registers; " in done.out
    assert "call_bytes" not in done.out  # it moves as much as before
    old, new = (fresh.json("show", job["job"])["tasks"][-1]["task"] for job in reversed(fresh.json("list")))
    assert f"`haloctl kernels {old} {new}` shows the kernels" in done.out
    changes = fresh.answer("kernels", old, new)
    assert "main: 1 of 1 kernel that both have differ" in changes
    assert "matmul_512x512x512" in changes
    assert "spill 0 -> 1" in changes
    ((kernel,),) = ([change["changes"] for change in entry["kernels"]] for entry in fresh.json("kernels", old, new))
    assert kernel["spill"][0] == 0 < kernel["spill"][1]


def test_mistakes_about_kernels_are_told(fresh: Haloctl, tmp_path: Path) -> None:
    text = MATMUL.format(prelude="", config="")
    no_target = fresh.run("submit", gated(fresh, tmp_path / "a.mlir", text, "spills", against="target"))
    assert (no_target.code, "no target is one: use last-good" in no_target.err) == (2, True)
    without = fresh.job(
        name="x", model="tiny-llama", stages=["export", "compile"], gate={"metrics": ["spills"]}, variants={}
    )
    refused = fresh.run("submit", without)
    assert (refused.code, "spills needs the stage analyse" in refused.err) == (2, True)
    unknown = fresh.run("kernels", "nothing")
    assert (unknown.code, "no report of kernels (of the stage analyse)" in unknown.err) == (4, True)
    assert fresh.run("kernels", "a", "b", "c").code == 2


def test_a_profile_says_where_the_time_of_a_call_goes(copied: Haloctl) -> None:
    """Program and checkpoint are there already; every kernel of the schedule is seen, and they fit into the call."""
    job = {
        **EVERYTHING,
        "variants": {"precision": "f16", "tp": [1, 2], "exclude": [{"tp": 2}]},
        "stages": ["export", "compile", "analyse", "profile"],
    }
    done = copied.run("submit", copied.job(**job), "--wait")
    assert done.code == 0, done.err
    variant = "tiny-llama-FP16-TP1"
    report = copied.json("profile", variant)
    assert report["collector"] == "ireeprof"
    assert len(report["entries"]) == 2
    for entry in report["entries"].values():
        assert (entry["missing"], entry["runs"]) == ([], 20)
        assert 0 < entry["kernels_ms"] < 2 * entry["wall_ms"]  # other tests run beside this one
        assert sum(kernel["us"] for kernel in entry["kernels"]) == pytest.approx(1e3 * entry["kernels_ms"])
    table = copied.answer("profile", variant, "--top", "3")
    assert "% of the roofline; 20 calls profiled" in table
    differences = copied.answer("profile", "diff", variant, variant)
    assert "(+0), in kernels" in differences
    kept = {row["name"] for row in copied.json("artifacts", "--kind", "profile")}
    assert kept == {f"{entry}.ireeprof" for entry in report["entries"]}
    refused = copied.run("profile", variant, variant, variant)
    assert (refused.code, "takes one, or diff and two" in refused.err) == (2, True)
