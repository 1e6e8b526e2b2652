"""What `analyse` says of programs that are small enough to be computed by hand, compiled for MI300X."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.peaks import PEAKS
from jobs.stages.analyse import analysis_program
from jobs.stages.base import Archive
from jobs.stages.compile import DUMP, DUMP_ARCHIVE, DUMP_FILES, DUMP_FLAGS, MAX_DUMP_BYTES
from jobs.targets import TARGETS, compile_flags
from workers.attempts.archives import pack
from workers.environment import resolve_command
from workers.llm.kernels.table import to_text

F16, F32, I32, I64 = 2, 4, 4, 8  #: bytes
MI300X = PEAKS["mi300x"]

#: A matmul, a gather, a scatter and an attention, each of which is one dispatch.
SINGLE = """
module @single {
  func.func @matmul(%left: tensor<32x64xf16>, %right: tensor<64x128xf16>) -> tensor<32x128xf32> {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<32x128xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x128xf32>) -> tensor<32x128xf32>
    %0 = linalg.matmul ins(%left, %right : tensor<32x64xf16>, tensor<64x128xf16>)
      outs(%init : tensor<32x128xf32>) -> tensor<32x128xf32>
    return %0 : tensor<32x128xf32>
  }
  func.func @gather(%ids: tensor<8xi64>, %table: tensor<1000x16xf16>) -> tensor<8x16xf16> {
    %empty = tensor.empty() : tensor<8x16xf16>
    %0 = linalg.generic {
      indexing_maps = [affine_map<(row, column) -> (row)>, affine_map<(row, column) -> (row, column)>],
      iterator_types = ["parallel", "parallel"]
    } ins(%ids : tensor<8xi64>) outs(%empty : tensor<8x16xf16>) {
    ^bb0(%id: i64, %out: f16):
      %row = arith.index_cast %id : i64 to index
      %column = linalg.index 1 : index
      %value = tensor.extract %table[%row, %column] : tensor<1000x16xf16>
      linalg.yield %value : f16
    } -> tensor<8x16xf16>
    return %0 : tensor<8x16xf16>
  }
  func.func @scatter(%update: tensor<4x16xf16>, %ids: tensor<4x1xi32>, %old: tensor<100x16xf16>)
      -> tensor<100x16xf16> {
    %0 = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
      ins(%update, %ids : tensor<4x16xf16>, tensor<4x1xi32>) outs(%old : tensor<100x16xf16>) {
    ^bb0(%new: f16, %before: f16):
      iree_linalg_ext.yield %new : f16
    } -> tensor<100x16xf16>
    return %0 : tensor<100x16xf16>
  }
  func.func @attention(%q: tensor<2x32x16xf16>, %k: tensor<2x64x16xf16>, %v: tensor<2x64x8xf16>)
      -> tensor<2x32x8xf16> {
    %scale = arith.constant 0.25 : f16
    %empty = tensor.empty() : tensor<2x32x8xf16>
    %0 = iree_linalg_ext.attention <indexing_maps = [
        affine_map<(b, m, n, k1, k2) -> (b, m, k1)>, affine_map<(b, m, n, k1, k2) -> (b, k2, k1)>,
        affine_map<(b, m, n, k1, k2) -> (b, k2, n)>, affine_map<(b, m, n, k1, k2) -> ()>,
        affine_map<(b, m, n, k1, k2) -> (b, m, n)>]>
      ins(%q, %k, %v, %scale : tensor<2x32x16xf16>, tensor<2x64x16xf16>, tensor<2x64x8xf16>, f16)
      outs(%empty : tensor<2x32x8xf16>) {
    ^bb0(%score: f32):
      iree_linalg_ext.yield %score : f32
    } -> tensor<2x32x8xf16>
    return %0 : tensor<2x32x8xf16>
  }
  func.func @unknown_size(%x: tensor<?x16xf32>) -> tensor<?x16xf32> {
    %0 = arith.addf %x, %x : tensor<?x16xf32>
    return %0 : tensor<?x16xf32>
  }
}
"""

#: A layer that is called three times: device 0 and device 1 compute a matmul each, and device 0 adds the two.
SPLIT = """
module @split {
  util.func private @layer(%x: tensor<16x64xf32>, %w0: tensor<64x64xf32>, %w1: tensor<64x64xf32>)
      -> tensor<16x64xf32> attributes {inlining_policy = #util.inline.never} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty() : tensor<16x64xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x64xf32>) -> tensor<16x64xf32>
    %there = flow.tensor.transfer %x : tensor<16x64xf32> to #hal.device.promise<@__device_1>
    %y0 = linalg.matmul ins(%x, %w0 : tensor<16x64xf32>, tensor<64x64xf32>)
      outs(%init : tensor<16x64xf32>) -> tensor<16x64xf32>
    %y1 = linalg.matmul ins(%there, %w1 : tensor<16x64xf32>, tensor<64x64xf32>)
      outs(%init : tensor<16x64xf32>) -> tensor<16x64xf32>
    %back = flow.tensor.transfer %y1 : tensor<16x64xf32> to #hal.device.promise<@__device_0>
    %sum = arith.addf %y0, %back : tensor<16x64xf32>
    util.return %sum : tensor<16x64xf32>
  }
  util.func public @step(
    %x: tensor<16x64xf32> {iree.abi.affinity = #hal.device.promise<@__device_0>},
    %w0: tensor<64x64xf32> {iree.abi.affinity = #hal.device.promise<@__device_0>},
    %w1: tensor<64x64xf32> {iree.abi.affinity = #hal.device.promise<@__device_1>}
  ) -> (tensor<16x64xf32> {iree.abi.affinity = #hal.device.promise<@__device_0>}) {
    %0 = util.call @layer(%x, %w0, %w1)
      : (tensor<16x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %1 = util.call @layer(%0, %w0, %w1)
      : (tensor<16x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %2 = util.call @layer(%1, %w0, %w1)
      : (tensor<16x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    util.return %2 : tensor<16x64xf32>
  }
}
"""


def analysed(folder: Path, text: str, target: str = "mi300x", devices: int = 1) -> dict[str, Any]:
    """Compile a program as the stage does, keep its dump as a node does, and return the report on it."""
    (folder / "outputs").mkdir()
    (folder / "inputs/compile").mkdir(parents=True)
    (folder / "model.mlir").write_text(text)
    flags = compile_flags(target, devices, frozenset({"--iree-rocm-target"}))
    argv = [str(Path(sys.executable).with_name("iree-compile")), "model.mlir", "-o", "model.vmfb", *flags, *DUMP_FLAGS]
    subprocess.run(argv, cwd=folder, check=True, capture_output=True)
    archive = Archive(DUMP, DUMP_FILES, "dump", MAX_DUMP_BYTES)
    assert pack(folder, archive, folder / "inputs/compile" / DUMP_ARCHIVE) is None
    peaks = {"peaks": PEAKS[target].to_settings()} if target in PEAKS else {}
    command, environment = resolve_command(analysis_program({"target": target, **peaks}))
    environment |= {"XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    report: dict[str, Any] = json.loads((folder / "outputs/kernels.json").read_text())
    assert (folder / "outputs/kernels.txt").read_text() == to_text(report)
    return report


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return analysed(tmp_path_factory.mktemp("single"), SINGLE)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return analysed(tmp_path_factory.mktemp("split"), SPLIT, devices=2)


def only_kernel(report: dict[str, Any], entry: str) -> dict[str, Any]:
    """Return the kernel of an entry point that has one, which it calls once."""
    ((name, calls),) = report["entries"][entry]["calls"].items()
    assert calls == 1
    kernel: dict[str, Any] = report["kernels"][name]
    return kernel


@pytest.mark.parametrize(
    ("entry", "kind", "flops", "read_bytes", "written_bytes"),
    [
        ("matmul", "matmul", 2 * 32 * 128 * 64, (32 * 64 + 64 * 128) * F16, 32 * 128 * F32),
        ("gather", "gather", 0, 8 * I64 + 8 * 16 * F16, 8 * 16 * F16),  # 8 rows of 1000
        ("scatter", "scatter", 0, 4 * 16 * F16 + 4 * I32, 4 * 16 * F16),  # 4 rows of 100
        (
            "attention",
            "attention",
            2 * 2 * 32 * 64 * 16 + 2 * 2 * 32 * 64 * 8,
            2 * (32 * 16 + 64 * 16 + 64 * 8) * F16,
            2 * 32 * 8 * F16,
        ),
    ],
)
def test_a_dispatch_costs_what_a_hand_computes(
    single: dict[str, Any], entry: str, kind: str, flops: int, read_bytes: int, written_bytes: int
) -> None:
    kernel = only_kernel(single, entry)
    assert (kernel["kind"], kernel["flops"]) == (kind, flops)
    assert (kernel["read_bytes"], kernel["written_bytes"]) == (read_bytes, written_bytes)
    assert kernel["operand"] == ("f16" if flops else "")
    compute_us, memory_us = (
        flops / MI300X.tflops["f16"] / 1e6,
        (read_bytes + written_bytes) / MI300X.gb_per_s / 1e3,
    )
    assert kernel["floor_us"] == pytest.approx(max(compute_us, memory_us))
    assert kernel["bound"] == ("compute" if compute_us > memory_us else "memory")
    facts = single["entries"][entry]
    assert (facts["dispatches"], facts["flops"], facts["bytes"]) == (1, flops, read_bytes + written_bytes)
    assert facts["floor_ms"] == pytest.approx(kernel["floor_us"] / 1e3)
    assert facts["few_workgroups"] == 1  # a device has 304 compute units


def test_a_kernels_code_is_what_the_assembly_says(single: dict[str, Any]) -> None:
    kernel = only_kernel(single, "matmul")
    assert kernel["mfma"].keys() == {"v_mfma_f32_16x16x16_f16"}
    assert kernel["instructions"] > sum(kernel["mfma"].values()) > 0
    assert kernel["workgroups"] * kernel["threads"] >= 64
    assert 1 <= kernel["vgpr"] <= 512
    assert 1 <= kernel["waves_per_simd"] <= 8
    assert (kernel["spills"], kernel["scratch_bytes"]) == (0, 0)
    assert (kernel["pipeline"], "MFMA_F32_16x16x16_F16" in kernel["lowering"]) == ("TileAndFuse", True)


def test_what_is_known_only_when_it_runs_counts_as_unknown(single: dict[str, Any]) -> None:
    facts = single["entries"]["unknown_size"]
    assert (facts["dynamic_kernels"], facts["flops"], facts["floor_ms"]) == (1, 0, 0)


def test_calls_are_followed_over_devices_and_transfers_between_them(split: dict[str, Any]) -> None:
    facts = split["entries"]["step"]
    matmul, layers, sent = 2 * 16 * 64 * 64, 3, 16 * 64 * F32
    assert sorted(facts["calls"].values()) == [layers, layers]
    assert (facts["devices"], facts["dispatches"]) == (2, 2 * layers)
    assert facts["flops"] == layers * (2 * matmul + 16 * 64)  # with the addition
    assert facts["links"] == [
        {"from": 0, "to": 1, "bytes": layers * sent, "transfers": layers},
        {"from": 1, "to": 0, "bytes": layers * sent, "transfers": layers},
    ]
    assert (facts["link_bytes"], facts["link_steps"]) == (2 * layers * sent, 2 * layers)
    assert facts["link_floor_ms"] == pytest.approx(2 * layers * sent / MI300X.link_gb_per_s / 1e6)
    assert facts["copied_bytes"] == 0  # each copy is a transfer
    busiest = max(split["kernels"].values(), key=lambda kernel: float(kernel["floor_us"]))
    assert facts["floor_ms"] == pytest.approx(layers * busiest["floor_us"] / 1e3)  # the other device works meanwhile


def test_on_a_cpu_there_are_its_own_peaks_and_no_registers(tmp_path: Path) -> None:
    matmul = SINGLE.partition("  func.func @gather")[0] + "}\n"
    report = analysed(tmp_path, matmul, target="cpu")
    kernel = only_kernel(report, "matmul")
    assert (kernel["flops"], kernel["instructions"] > 0, "vgpr" in kernel) == (2 * 32 * 128 * 64, True, False)
    peaks = report["peaks"]
    assert min(peaks["tflops"]["f32"], peaks["vector_tflops"], peaks["gb_per_s"]) > 0
    (kept,) = (tmp_path / "cache/haloctl").iterdir()
    assert json.loads(kept.read_text()) == peaks  # and the next task of this node reads them


def test_every_target_that_is_no_cpu_has_peaks() -> None:
    assert TARGETS.keys() - PEAKS.keys() == {"cpu"}
