"""The matrix instructions that compile counts in the kernels of a program."""

import os
from pathlib import Path

import pytest

from jobs.metrics import METRICS
from jobs.stages.compile import COMPILE
from jobs.stages.compile_phases import PHASES, phase_metric, phase_times
from jobs.stages.matrix_instructions import count_matrix_instructions
from jobs.state import FailureKind
from jobs.task import Measurement, Outcome

FP8, INT8, F16, F32 = (
    "v_mfma_f32_16x16x32_fp8_fp8",
    "v_mfma_i32_16x16x32_i8",
    "v_mfma_f32_16x16x16_f16",
    "v_mfma_f32_16x16x4_f32",
)

#: A prefill whose layer runs one kernel, twice, and a decode that runs one of its own.
SCHEDULE = """\
module @module {
  util.func private @prefill_bs1_t128.layer0(%arg0: !stream.timepoint) -> !stream.timepoint {
    %0 = stream.cmd.execute on(#hal.device.affinity<@__device_0>) with() {
      stream.cmd.dispatch @prefill_bs1_t128.layer0_dispatch_1::@prefill_bs1_t128.layer0_dispatch_1_matmul {
      }
    }
  }
  util.func public @prefill_bs1_t128(%arg0: !hal.buffer_view) -> !hal.buffer_view attributes {iree.abi.stub} {
    %1 = util.call @prefill_bs1_t128.layer0(%0) : (!stream.timepoint) -> !stream.timepoint
    %2 = util.call @prefill_bs1_t128.layer0(%1) : (!stream.timepoint) -> !stream.timepoint
  }
  util.func public @decode_bs1_c160(%arg0: !hal.buffer_view) -> !hal.buffer_view attributes {iree.abi.stub} {
      stream.cmd.dispatch @decode_bs1_dispatch_2::@decode_bs1_dispatch_2_matmul(%c0 : index) {
      }
  }
}
"""


def parsed(folder: Path, prefill: list[str], decode: list[str], precision: str | None, rows: int = 128) -> Outcome:
    """Return the outcome of a compile with these instructions in its kernels, linked into one file."""
    (folder / "outputs").mkdir()
    (folder / "outputs/model.vmfb").write_bytes(b"module")
    (folder / "dump").mkdir()
    lines = ["\t.globl\tprefill_bs1_t128.layer0_dispatch_1_matmul", *(f"\t{name} a[0:3], v[0:1]" for name in prefill)]
    lines += ["\t.globl\tdecode_bs1_dispatch_2_matmul", *(f"\t{name} a[0:3], v[0:1]" for name in decode)]
    (folder / "dump/linked.rocmasm").write_text("\n".join(lines))
    (folder / "dump/model.7.stream.mlir").write_text(SCHEDULE)
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


def test_a_kernel_counts_for_each_entry_point_that_runs_it_whatever_its_name(tmp_path: Path) -> None:
    """Equal kernels are merged: this decode runs prefill's, and its own has none."""
    shared = "stream.cmd.dispatch @prefill_bs1_t128.layer0_dispatch_1::@prefill_bs1_t128.layer0_dispatch_1_matmul {\n"
    before, decode, after = SCHEDULE.partition("  util.func public @decode")
    (tmp_path / "model.7.stream.mlir").write_text(before + decode + after.replace("{\n", "{\n" + shared, 1))
    (tmp_path / "linked.rocmasm").write_text(f"\t.globl\tprefill_bs1_t128.layer0_dispatch_1_matmul\n\t{F16} a[0:3]\n")
    counts = count_matrix_instructions(tmp_path, "v_mfma", ".rocmasm", ("prefill", "decode"))
    assert counts == {"prefill": {F16: 1}, "decode": {F16: 1}}


def test_without_a_schedule_nothing_is_counted_wrongly(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="dumped no"):
        count_matrix_instructions(tmp_path, "v_mfma", ".rocmasm", ("prefill",))


def test_the_time_of_a_phase_ends_when_the_compiler_has_written_it(tmp_path: Path) -> None:
    for name, at in (("model.6.flow.mlir", 100.0), ("model.7.stream.mlir", 158.5), ("model.9.new.mlir", 160.0)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (at, at))
    assert list(phase_times(tmp_path)) == [Measurement("compile_stream_s", (58.5,))]


def test_every_phase_has_a_metric() -> None:
    assert {phase_metric(phase) for phase in PHASES} <= METRICS.keys()
