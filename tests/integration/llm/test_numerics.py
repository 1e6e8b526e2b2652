"""Numerics through the real programs, and proof that its gate bites: every planted fault must fail it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import iree.runtime
import numpy as np
import pytest

from jobs.models import SHIPPED
from jobs.stages.numerics import gate
from jobs.state import FailureKind
from jobs.targets import compile_flags
from jobs.variants import QUANTIZED, Precision
from tests.integration.stage_programs import run_here
from workers.llm.programs import export, invoke, numerics
from workers.llm.quantizers import haloctl as quantizer

ROOT = Path(__file__).parents[3]
IREE_COMPILE = Path(sys.executable).with_name("iree-compile")
TINY_LLAMA = SHIPPED / "tiny-llama"
EXPORT = ["--precision=f32", "--attention=sdpa", "--cache-length=48"]
#: The batch sizes and prompt lengths of programs, by their tensor parallelism: two ranks take twice as long to compile.
SIZES = {1: ((1, 2), (16, 32)), 2: ((2,), (32,))}
ONE_SIZE = ("--batch=2", "--prompt-tokens=32")
GRANULARITY = {
    Precision.FP8: "--granularity=tensor",
    Precision.INT8: "--granularity=channel",
    Precision.INT4: "--granularity=group",
}
MEASURE = ["--windows=8", "--new-tokens=16"]
MAX_PERPLEXITY_INCREASE_PERCENT = 1.0


@dataclass(frozen=True)
class CompiledProgram:
    """An exported and compiled program."""

    folder: Path  #: a task's working folder, with inputs/export and inputs/compile
    tp: int

    @property
    def flags(self) -> list[str]:
        files = ["--program=inputs/export/config.json", "--module=inputs/compile/model.vmfb"]
        return [*files, *["--device=local-task"] * self.tp]


Build = Callable[..., CompiledProgram]


def run_stage(folder: Path, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a stage program as an agent does: in its working folder, with an empty outputs/."""
    shutil.rmtree(folder / "outputs", ignore_errors=True)
    (folder / "outputs").mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, "-m", f"workers.llm.programs.{name}", *flags]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)


def report(folder: Path, program: ModuleType, *flags: str) -> dict[str, Any]:
    """The report of a stage program that runs in this process, with an empty outputs/."""
    shutil.rmtree(folder / "outputs", ignore_errors=True)
    (folder / "outputs").mkdir(parents=True)
    run_here(program.main, folder, *flags)
    name = program.__name__.rpartition(".")[2]
    contents: dict[str, Any] = json.loads((folder / "outputs" / f"{name}.json").read_text())
    return contents


def measure(program: CompiledProgram, *flags: str) -> dict[str, Any]:
    return report(program.folder, numerics, "--model=tiny-llama", *program.flags, *MEASURE, *flags)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Export and compile a model once for each set of arguments."""

    @cache
    def make(tp: int = 1, model: str = "tiny-llama", *flags: str) -> CompiledProgram:
        folder = tmp_path_factory.mktemp("program")
        batch, prompt_tokens = (map(str, sizes) for sizes in SIZES[tp])
        sizes = flags or ("--batch", *batch, "--prompt-tokens", *prompt_tokens)
        report(folder, export, f"--model={model}", f"--tp={tp}", *EXPORT, *sizes)
        (folder / "inputs" / "compile").mkdir(parents=True)
        (folder / "outputs").rename(folder / "inputs" / "export")
        files = ["inputs/export/model.mlir", "-o", "inputs/compile/model.vmfb"]
        subprocess.run([IREE_COMPILE, *files, *compile_flags("cpu", tp, ())], cwd=folder, check=True)
        return CompiledProgram(folder, tp)

    return make


def copied(program: CompiledProgram, to: Path) -> CompiledProgram:
    """A copy whose files can be corrupted."""
    shutil.copytree(program.folder / "inputs", to / "inputs")
    return CompiledProgram(to, program.tp)


def swap_shards(program: CompiledProgram, part_of_name: str) -> int:
    """Give ranks 0 and 1 each other's shards of the parameters whose names contain this; returns how many."""
    files = [program.folder / "inputs" / "export" / f"model.rank{rank}.irpa" for rank in (0, 1)]
    places = [shards(file, f"rank{rank}.") for rank, file in enumerate(files)]
    names = [name for name in places[0].keys() & places[1].keys() if part_of_name in name]
    contents = [bytearray(file.read_bytes()) for file in files]
    for name in names:
        first, second = places[0][name], places[1][name]
        contents[0][first], contents[1][second] = contents[1][second], contents[0][first]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return len(names)


def shards(file: Path, prefix: str) -> dict[str, slice]:
    """The place of each parameter's bytes in a parameter file."""
    index = iree.runtime.ParameterIndex()
    index.load(str(file))
    stored = {name.removeprefix(prefix): entry for name, entry in index.items() if entry.is_file}
    starts = {name: entry.file_storage[1] for name, entry in stored.items()}
    return {name: slice(start, start + stored[name].length) for name, start in starts.items()}


def plant_scale_error(program: CompiledProgram, module: str, factor: float, scale_type: type[np.floating[Any]]) -> None:
    """Multiply the scales of one module's weight, as the program loads them."""
    file = program.folder / "inputs" / "export" / "model.rank0.irpa"
    ((_, place),) = [item for item in shards(file, "rank0.model.").items() if f"{module}.weight_scale" in item[0]]
    content = bytearray(file.read_bytes())
    content[place] = (np.frombuffer(bytes(content[place]), scale_type) * scale_type(factor)).tobytes()
    file.write_bytes(content)


def assert_wrong_numbers(report: dict[str, Any]) -> None:
    """The gate must bite at the widest tolerance too, or the fault would pass in another precision.

    What rounding to 8 bits makes of the model is more than the subtlest of these faults.
    """
    for precision in set(Precision) - QUANTIZED:
        failure = gate(report, precision, MAX_PERPLEXITY_INCREASE_PERCENT)
        assert failure is not None, precision
        assert failure.kind is FailureKind.WRONG_NUMBERS


@pytest.mark.parametrize("tp", [1, 2])
def test_a_right_program_agrees_with_torch(build: Build, tp: int) -> None:
    report = measure(build(tp))
    assert gate(report, Precision.F32, MAX_PERPLEXITY_INCREASE_PERCENT) is None
    assert report["max_logit_diff"] < 1e-3
    assert report["argmax_agreement"] == 1
    assert report["perplexity"] == pytest.approx(report["reference_perplexity"], rel=1e-4)
    assert report["tokens_scored"] == 8 * (16 + 1)
    batches, prompt_tokens = SIZES[tp]
    assert [(step["kind"], step["batch"], step["prompt_tokens"]) for step in report["steps"]] == [
        (kind, batch, tokens) for batch in batches for tokens in prompt_tokens for kind in ("prefill", "decode")
    ]


@pytest.mark.parametrize("tp", [1, 2])
def test_every_entry_point_answers_finite_logits(build: Build, tp: int) -> None:
    program = build(tp)
    calls = report(program.folder, invoke, *program.flags)["calls"]
    batches, prompt_tokens = SIZES[tp]
    assert {call["entry_point"] for call in calls} == {
        *(f"prefill_bs{batch}_t{tokens}" for batch in batches for tokens in prompt_tokens),
        *(f"decode_bs{batch}_c{tokens + 16}" for batch in batches for tokens in prompt_tokens),
    }
    assert all(call["finite"] and call["max_abs_logit"] > 0 for call in calls)


@pytest.mark.parametrize("precision", sorted(QUANTIZED))
def test_a_scale_that_is_two_percent_off_gives_wrong_numbers_in_low_precision(
    build: Build, tmp_path: Path, precision: Precision
) -> None:
    inputs = () if precision is Precision.INT4 else ("--inputs=static",)
    run_here(
        quantizer.main, tmp_path, "--model=tiny-llama", f"--precision={precision}", GRANULARITY[precision], *inputs
    )
    weights = (tmp_path / "outputs").rename(tmp_path / "weights")
    program = build(1, "tiny-llama", *ONE_SIZE, f"--precision={precision}", f"--quantized={weights}")
    right = measure(program, f"--quantized={weights}", "--windows=16")
    assert gate(right, precision, MAX_PERPLEXITY_INCREASE_PERCENT) is None
    wrong, scale_type = copied(program, tmp_path / "wrong"), np.float16 if precision is Precision.INT4 else np.float32
    plant_scale_error(wrong, "layers.1.self_attn.v_proj", 1.02, scale_type)
    failure = gate(measure(wrong, f"--quantized={weights}", "--windows=16"), precision, 100)
    assert failure is not None
    assert "scale error of model.layers.1.self_attn." in failure.message  # those of its inputs have the same effect


@pytest.mark.parametrize("part", ["layers.2.self_attn.o_proj", "lm_head"])
def test_two_ranks_with_each_others_shards_give_wrong_numbers(build: Build, tmp_path: Path, part: str) -> None:
    program = copied(build(2), tmp_path)
    assert swap_shards(program, part) > 0
    assert_wrong_numbers(measure(program))


def test_a_dropped_layer_gives_wrong_numbers(build: Build) -> None:
    assert_wrong_numbers(measure(build(1, "tiny-llama", *ONE_SIZE, "--override", "num_hidden_layers=3")))


def test_a_wrong_rope_base_gives_wrong_numbers(build: Build, tmp_path: Path) -> None:
    shutil.copytree(TINY_LLAMA, tmp_path / "model")
    config = json.loads((TINY_LLAMA / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500000.0  # llama 3's, the default of some converters
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert_wrong_numbers(measure(build(1, str(tmp_path / "model"), *ONE_SIZE)))


def test_a_text_that_is_too_short_is_refused(build: Build, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("And it came to pass.")
    program = build(1)
    done = run_stage(program.folder, "numerics", "--model=tiny-llama", *program.flags, *MEASURE, f"--text={text}")
    assert_refused(done, f"the text {text} has 8 tokens, 8 windows of 48 need 384")


def test_more_new_tokens_than_the_cache_holds_are_refused(build: Build) -> None:
    program = build(1)
    done = run_stage(program.folder, "numerics", "--model=tiny-llama", *program.flags, "--new-tokens=17")
    assert_refused(done, "give at most --new-tokens 16")


def test_too_few_devices_are_refused(build: Build) -> None:
    program = build(2)
    done = run_stage(program.folder, "invoke", *program.flags[:-1])
    assert_refused(done, "runs on 2 devices, 1 were given")


def test_a_module_that_is_none_is_refused(build: Build, tmp_path: Path) -> None:
    program = copied(build(1), tmp_path)
    (tmp_path / "inputs" / "compile" / "model.vmfb").write_bytes(b"no module")
    assert_refused(run_stage(program.folder, "invoke", *program.flags), "is not a module that this IREE can load")


def assert_refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert why in last
