"""Where numbers part: planted faults are named by layer and module, and a right program has none."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.stages import localization
from jobs.targets import compile_flags
from orchestrator.views import dispatch_rows
from tests.integration.llm.test_numerics import CompiledProgram, shards, swap_shards
from tests.integration.stage_programs import NARROW, run_here
from workers.llm.numerics.layer_errors import ModuleErrors, PhaseError, first_beyond
from workers.llm.programs import export, locate, trace_dispatches

SIZES = ("--batch=2", "--prompt-tokens=16", "--cache-length=24")

Export = Callable[[int], Path]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Export the shipped model once for each tensor parallelism; returns the working folder."""

    @cache
    def make(tp: int) -> Path:
        folder = tmp_path_factory.mktemp("program")
        (folder / "outputs").mkdir()
        run_here(export.main, folder, *model_flags(tp))
        (folder / "inputs").mkdir()
        (folder / "outputs").rename(folder / "inputs" / "export")
        return folder

    return make


def model_flags(tp: int) -> tuple[str, ...]:
    return ("--model=tiny-llama", "--precision=f32", f"--tp={tp}", "--attention=sdpa", *SIZES)


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder / "inputs", to / "inputs")
    return to


def located(folder: Path, tp: int, *flags: str) -> dict[str, Any]:
    """The report about the parameters in a folder."""
    (folder / "outputs").mkdir(exist_ok=True)
    compiling = [f"--compile-flag={flag}" for flag in (*compile_flags("cpu", tp, ()), NARROW)]
    devices = ["--device=local-task"] * tp
    run_here(locate.main, folder, *model_flags(tp), "--parameters=inputs/export", *devices, *compiling, *flags)
    report: dict[str, Any] = json.loads((folder / "outputs" / "layers.json").read_text())
    return report


def scale(folder: Path, parameter: str, factor: float) -> None:
    """Multiply a parameter of the first rank."""
    file = folder / "inputs" / "export" / "model.rank0.irpa"
    content = bytearray(file.read_bytes())
    place = shards(file, "rank0.")[parameter]
    content[place] = (np.frombuffer(content[place], np.float32) * factor).astype(np.float32).tobytes()
    file.write_bytes(content)


def test_a_right_program_is_off_in_no_layer(exported: Export, tmp_path: Path) -> None:
    folder = copied(exported(1), tmp_path)
    report = located(folder, 1)
    names = ["model.embed_tokens", *(f"model.layers.{layer}" for layer in range(4)), "lm_head"]
    assert [layer["module"] for layer in report["layers"]] == names
    assert all(layer[phase]["error"] < 1e-5 for layer in report["layers"] for phase in ("prefill", "decode"))
    assert (report["first"], report["modules"]) == (None, [])
    assert localization.finding(folder) == "given its input, no layer is off by more than 0.0001 of what it adds"


def test_a_wrong_scale_is_found_in_its_layer_and_module(exported: Export, tmp_path: Path) -> None:
    folder = copied(exported(1), tmp_path)
    scale(folder, "model.layers.1.self_attn.v_proj.weight", 1.1)
    report = located(folder, 1)
    assert report["first"]["module"] == "model.layers.1"
    assert report["module"]["module"] == "model.layers.1.self_attn.v_proj"
    assert report["module"]["error"] == pytest.approx(0.1, rel=1e-3)
    later = report["layers"][3]  # given what comes out of layer 1, the next one is right
    assert later["module"] == "model.layers.2"
    assert later["prefill"]["error"] < 1e-5 < 1e-2 < later["prefill"]["drift"]
    finding = localization.finding(folder)
    assert finding.startswith("they part in model.layers.1, ")
    assert "and in it first model.layers.1.self_attn.v_proj (off by 10%)" in finding


def test_swapped_shards_are_found_in_their_layer_and_module(exported: Export, tmp_path: Path) -> None:
    folder = copied(exported(2), tmp_path)
    assert swap_shards(CompiledProgram(folder, 2), "layers.3.mlp.up_proj.weight") == 1
    report = located(folder, 2)
    assert report["first"]["module"] == "model.layers.3"
    assert (report["module"]["module"], report["module"]["rank"]) == ("model.layers.3.mlp.up_proj", 0)
    off = [(module["module"], module.get("rank")) for module in report["modules"] if module["prefill"]["error"] > 1e-4]
    assert off == [
        ("model.layers.3.mlp.up_proj", 0),
        ("model.layers.3.mlp.up_proj", 1),
        ("model.layers.3.mlp.down_proj", None),
    ]


TWO_LAYERS = (*model_flags(1), "--override=num_hidden_layers=2")


def traced(folder: Path, *flags: str) -> dict[str, Any]:
    """The report about the dispatches of two layers, with the parameters in a folder."""
    (folder / "outputs").mkdir(exist_ok=True)
    compiling = [f"--compile-flag={flag}" for flag in (*compile_flags("cpu", 1, ()), NARROW, *flags)]
    given = ("--parameters=inputs/export", "--device=local-task", *compiling)
    run_here(trace_dispatches.main, folder, *TWO_LAYERS, *given)
    report: dict[str, Any] = json.loads((folder / "outputs" / "dispatches.json").read_text())
    return report


def test_the_dispatch_that_differs_is_named_and_another_set_of_flags_differs_in_none(
    exported: Export, tmp_path: Path
) -> None:
    folder = copied(exported(1), tmp_path)
    right, tiled = traced(folder), traced(folder, "--iree-opt-level=O2")
    *_, note = dispatch_rows.build_table(["A", "B"], [right, tiled]).notes
    assert note.startswith("A and B return the same logits but for ")
    scale(folder, "model.layers.1.self_attn.v_proj.weight", 1.1)
    wrong = traced(folder)
    assert len(right["calls"]) == len(wrong["calls"]) > 80
    rows = dispatch_rows.rows_of([right, wrong])
    first = next(row for row in rows if row["difference"] > 1e-4)
    assert first["dispatch_1"] == first["dispatch_2"]
    assert first["dispatch_1"].startswith("prefill_") and "_matmul_" in first["dispatch_1"]
    assert first["difference"] == pytest.approx(0.1, rel=0.3)  # what v_proj returns, and nothing before it
    assert all(row["difference"] < 1e-5 for row in rows[: first["call"] - 1])
    (note,) = dispatch_rows.build_table(["A", "B"], [right, wrong]).notes
    assert f"the first dispatch that differs is call {first['call']}, {first['dispatch_1']}: by 0." in note


def test_numbers_within_their_limits_are_not_looked_into(exported: Export, tmp_path: Path) -> None:
    folder = copied(exported(1), tmp_path)
    (folder / "outputs").mkdir()
    (folder / "outputs" / "numerics.json").write_text('{"kl_mean": 1e-9}')
    with pytest.raises(FileNotFoundError):
        located(folder, 1, "--if-beyond", "kl_mean=1e-8")
    assert localization.finding(folder) == ""


def test_what_cannot_be_compared_is_said_and_fails_nothing(exported: Export, tmp_path: Path) -> None:
    folder = copied(exported(1), tmp_path)
    report = located(folder, 1, "--compile-flag=--no-such-flag")
    assert "CompilerFailed: iree-compile can't compile the program with taps" in report["problem"]
    assert localization.finding(folder).startswith("where they part is not known: CompilerFailed: iree-compile can't")


def test_numbers_that_are_none_are_beyond_every_limit() -> None:
    right, none = (ModuleErrors(name, {"prefill": PhaseError(error)}) for name, error in (("a", 1e-6), ("b", None)))
    assert first_beyond([right, none], 1e9) is none
    assert first_beyond([right], 1e-5) is None
