"""Taking an odd model to a program that runs, and comparing that with transformers."""

import io
import json
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM

from jobs.targets import compile_flags
from tests.fuzz.odd_models import EAGER, STEPS, OddModel, read_config, write_model
from tests.fuzz.program_loader import LoadedProgram, run_rows
from tests.integration.stage_programs import NARROW
from workers.failures import REMEDIES
from workers.llm.command_line import BadInput
from workers.llm.programs import check, export

IREE_COMPILE = Path(sys.executable).with_name("iree-compile")
#: the largest difference, in standard deviations of the reference's logits
TOLERANCE = 1e-3
RIGHT, NO_MODEL = "right", "transformers can't run it"


def outcome_of(model: OddModel, folder: Path) -> str:
    """Return that the program is right, or why there is none; a program that is wrong is an AssertionError."""
    if not write_model(folder / "model", model):
        return NO_MODEL
    (folder / "outputs").mkdir()
    if reason := refusal(model, folder):
        return reason
    if reason := compile_program(model, folder):
        return reason
    difference = largest_difference(model, folder)
    assert difference < TOLERANCE, f"logits differ by {difference:.2g} standard deviations"
    return RIGHT


def refusal(model: OddModel, folder: Path) -> str | None:
    """Return why submit's check or export refuses the model."""
    flags = [f"--model={folder / 'model'}"]
    sizes = [f"--tp={model.tp}", f"--attention={model.attention}", f"--cache-length={model.cache_length}"]
    try:
        report = json.loads(_printed(check, folder, *flags, *sizes, "--precision=f32"))
        if "refused" in report:
            return str(report["refused"])
        if report["problems"]:
            return "; ".join(f"{problem['module']}: {problem['reason']}" for problem in report["problems"])
        _printed(export, folder, *flags, *model.flags)
    except BadInput as refused:
        return str(refused)
    return None


def _printed(program: ModuleType, folder: Path, *flags: str) -> str:
    with (
        chdir(folder),
        patch.object(sys, "argv", [program.__name__, *flags]),
        redirect_stdout(io.StringIO()) as printed,
    ):
        program.main()
    return printed.getvalue()


def compile_program(model: OddModel, folder: Path) -> str | None:
    """Compile for the CPU; return the remedy where the compiler has a known fault."""
    argv: list[str] = [
        str(IREE_COMPILE),
        "outputs/model.mlir",
        "-o",
        "model.vmfb",
        NARROW,
        *compile_flags("cpu", model.tp, ()),
    ]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    remedy = next((remedy for error, remedy in REMEDIES.items() if error in done.stderr), None)
    assert done.returncode == 0 or remedy, done.stderr[:2000]
    return remedy


@torch.inference_mode()
def largest_difference(model: OddModel, folder: Path) -> float:
    """Return the largest difference of a logit, relative to their deviation; infinite where one is no number."""
    config = read_config(folder / "model")
    reference = AutoModelForCausalLM.from_pretrained(
        folder / "model", config=config, dtype=torch.float32, **EAGER
    ).eval()
    lengths = torch.tensor(model.lengths)
    generator = torch.Generator().manual_seed(model.bucket)
    tokens = torch.randint(0, reference.config.vocab_size, (len(lengths), model.bucket + STEPS), generator=generator)
    rows = [row[: length + STEPS] for row, length in zip(tokens, model.lengths, strict=True)]
    expected = torch.stack(
        [
            reference(input_ids=row[None], use_cache=False).logits[0, length - 1 :]
            for row, length in zip(rows, model.lengths, strict=True)
        ]
    )
    got = run_rows(LoadedProgram(folder / "outputs", folder / "model.vmfb"), tokens, lengths, model.bucket)
    difference = float((got - expected).abs().max() / expected.std())
    return difference if difference == difference else float("inf")
