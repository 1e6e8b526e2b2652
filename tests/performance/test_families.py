"""Every family, split over 1, 2 and 4 devices: right, and how long it takes. `pytest -m benchmark ... -s` prints."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jobs.stages.compile import DUMP_FLAGS
from jobs.stages.matrix_instructions import count_matrix_instructions
from jobs.targets import TARGETS, compile_flags
from tests.integration.llm.test_export import (
    TOLERANCE,
    ExportCase,
    checkpoint,
    compile_for_cpu,
    export,
    largest_difference,
    run,
)
from workers.llm.runtime.iree_session import IreeSession
from workers.llm.sharding.split_styles import FAMILIES

pytestmark = pytest.mark.benchmark

TPS = (1, 2, 4)
MI300X = TARGETS["mi300x"]
#: sizes that matrix units can be used for, on each of two devices
LARGE: dict[str, Any] = {"hidden_size": 512, "head_dim": 64, "intermediate_size": 1024}


def case(family: str, tp: int, **more: Any) -> ExportCase:
    return ExportCase(family, tp, attention="eager" if family == "gemma2" else "sdpa", **more)


def exported(base: Path, export_case: ExportCase) -> tuple[Path, float]:
    """The folder, and the seconds that the export took beside its imports."""
    folder = base / str(export_case)
    done = export(folder, checkpoint(base, export_case), export_case)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "outputs/export.json").read_text())
    return folder, report["trace_s"] + report["parameters_s"]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_against_eager_transformers(tmp_path: Path, family: str) -> None:
    """f32 on the CPU: prefill of ragged prompts and 8 decode steps."""
    print(f"\n{family:10} {'tp':>2} {'max |diff|':>11} {'export s':>9} {'compile s':>9}")
    for tp in TPS:
        export_case = case(family, tp)
        folder, export_s = exported(tmp_path, export_case)
        begin = time.monotonic()
        module = compile_for_cpu(folder, tp)
        compile_s = time.monotonic() - begin
        session = IreeSession(folder / "outputs/config.json", module, ["local-task"] * tp)
        difference = largest_difference(session, checkpoint(tmp_path, export_case), 2, 12)
        print(f"{family:10} {tp:>2} {difference:>11.2e} {export_s:>9.1f} {compile_s:>9.1f}", flush=True)
        assert difference < TOLERANCE[export_case.precision]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_compiles_for_mi300x(tmp_path: Path, family: str) -> None:
    """f16 at tp 2, compile only: how many matrix instructions are in prefill (32 tokens) and decode (16 rows)."""
    export_case = case(family, 2, precision="f16", batch=(16,), prompt_tokens=(32,), config=LARGE)
    folder, export_s = exported(tmp_path, export_case)
    begin = time.monotonic()
    argv = ["iree-compile", "outputs/model.mlir", "-o", "model.vmfb", *DUMP_FLAGS]
    done = run([*argv, *compile_flags("mi300x", 2, frozenset({"--iree-rocm-target"}))], folder)
    assert done.returncode == 0, done.stderr[-2000:]
    compile_s = time.monotonic() - begin
    entries = ("prefill", "decode")
    kinds = count_matrix_instructions(folder / "dump", MI300X.matrix_instruction, MI300X.assembly_suffix, entries)
    counts = {entry: kinds[entry].total() for entry in entries}
    instructions = ", ".join(f"{count} in {entry}" for entry, count in counts.items())
    print(
        f"\n{family:10}  2 gfx942 f16: {instructions} MFMA; export {export_s:.1f} s, compile {compile_s:.1f} s",
        flush=True,
    )
    assert all(counts.values())
