"""The matrix instructions that compile counts in the kernels of a program."""

from pathlib import Path

import pytest

from jobs.stages.compile import COMPILE
from jobs.state import FailureKind
from jobs.task import Outcome

FP8, INT8, F16, F32 = (
    "v_mfma_f32_16x16x32_fp8_fp8",
    "v_mfma_i32_16x16x32_i8",
    "v_mfma_f32_16x16x16_f16",
    "v_mfma_f32_16x16x4_f32",
)


def parsed(folder: Path, prefill: list[str], decode: list[str], precision: str | None, rows: int = 128) -> Outcome:
    """Return the outcome of a compile with these instructions in its kernels, linked into one file."""
    (folder / "outputs").mkdir()
    (folder / "outputs/model.vmfb").write_bytes(b"module")
    (folder / "dump").mkdir()
    lines = ["\t.globl\tprefill_bs1_t128.layer0_dispatch_1", *(f"\t{name} a[0:3], v[0:1]" for name in prefill)]
    lines += ["\t.globl\tdecode_bs1_dispatch_2", *(f"\t{name} a[0:3], v[0:1]" for name in decode)]
    (folder / "dump/linked.rocmasm").write_text("\n".join(lines))
    low = {"precision": precision} if precision else {}
    return COMPILE.parse({"target": "mi300x", "prefill_rows": rows, "decode_rows": 1, **low}, folder)


def figures(outcome: Outcome) -> dict[str, float]:
    return {each.metric: each.samples[0] for each in outcome.measurements if each.metric.startswith("mfma")}


def test_a_low_precision_has_its_own_counts_beside_those_of_all(tmp_path: Path) -> None:
    outcome = parsed(tmp_path, [FP8, FP8, F16], [F16], "fp8")
    assert (outcome.failure, outcome.warnings) == (None, ())
    assert figures(outcome) == {"mfma_prefill": 3, "mfma_fp8_prefill": 2, "mfma_decode": 1, "mfma_fp8_decode": 0}


def test_precisions_that_are_multiplied_as_floats_have_one_count(tmp_path: Path) -> None:
    assert figures(parsed(tmp_path, [F16], [], "int4")) == {"mfma_prefill": 1, "mfma_decode": 0}


@pytest.mark.parametrize(("precision", "made"), [("fp8", [F16, F32]), ("int8", [FP8]), ("fp8", [INT8])])
def test_a_program_that_was_widened_fails(tmp_path: Path, precision: str, made: list[str]) -> None:
    failure = parsed(tmp_path, made, [], precision).failure
    assert failure is not None
    assert failure.kind is FailureKind.TOOL_FAILED
    assert f"no {precision} matrix instruction in prefill" in failure.message


def test_a_prompt_of_fewer_rows_than_a_tile_has_may_do_without(tmp_path: Path) -> None:
    assert parsed(tmp_path, [], [], "int8", rows=8).failure is None


def test_matmuls_in_f32_beside_low_ones_are_told(tmp_path: Path) -> None:
    (warning,) = parsed(tmp_path, [INT8, F32, F32], [], "int8").warnings
    assert warning.startswith("2 matrix instructions of f32 in prefill")
