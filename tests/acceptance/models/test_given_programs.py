"""A program that haloctl did not make goes through the stages, and a wrong result fails it."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from jobs.targets import compile_flags
from tests.acceptance.haloctl import Haloctl

SCALE = """
func.func @scale(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %product = arith.mulf %a, %b : tensor<4x8xf32>
  return %product : tensor<4x8xf32>
}
"""
QUICK = {"exclusive": False, "max_disturbed_reruns": 0, "repetitions": 2}


def test_given_programs_are_compiled_called_compared_and_timed(fresh: Haloctl, tmp_path: Path) -> None:
    """One that adds where it should multiply fails, and the others pass."""
    right, vmfb, wrong = (tmp_path / name for name in ("scale.mlir", "ready.vmfb", "wrong.mlir"))
    right.write_text(SCALE)
    wrong.write_text(SCALE.replace("mulf", "addf"))
    iree_compile = Path(sys.executable).with_name("iree-compile")
    subprocess.run(
        [iree_compile, right, "-o", vmfb, *compile_flags("cpu", 1, ())], stdin=subprocess.DEVNULL, check=True
    )
    numbers = np.arange(32, dtype=np.float32).reshape(4, 8)
    for name, array in (("a.npy", numbers), ("twice.npy", 2 * numbers)):
        np.save(tmp_path / name, array)
    call = {"function": "scale", "inputs": [str(tmp_path / "a.npy"), "4x8xf32=2"]}
    job = {
        "model": list(map(str, (right, vmfb, wrong))),
        "program": {**call, "expected": [str(tmp_path / "twice.npy")]},
    }
    done = fresh.run("submit", fresh.job(name="given", benchmark=QUICK, **job), "--wait")
    assert done.code == 3, done.err
    assert "FAIL wrong_numbers: result 0 differs by 0.468 of its largest value, at most 0.001 allowed" in done.out
    states = {row["variant"]: row["stages"]["invoke"]["state"] for row in fresh.json("matrix")}
    assert states == {
        "scale-FP16-TP1-given": "succeeded",
        "ready-FP16-TP1-given": "succeeded",
        "wrong-FP16-TP1-given": "failed",
    }
    timed = fresh.json("results", "--metric", "call_ms")
    assert {len(row["samples"]) for row in timed} == {2}
    refused = fresh.run("artifacts", "get", "scale-FP16-TP1-given", "-o", str(tmp_path / "folder"))
    assert (refused.code, "haloctl did not make this program" in refused.err) == (2, True)
