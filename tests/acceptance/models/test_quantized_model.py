"""A quantized checkpoint is exported as it is stored, and compared with the model that it approximates."""

import shutil
import sys
from pathlib import Path

import pytest

from jobs.models import SHIPPED
from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import EVERYTHING
from workers.llm.models.model_source import TOKENIZER_FILES
from workers.llm.quantizers import haloctl as quantizer

JOB = {
    **EVERYTHING,
    "name": "comes quantized",
    "variants": {"precision": "int4"},
    "stages": ["quantize", "export", "compile", "numerics"],
    "numerics": {"windows": 4, "max_kl_mean": 1e-4, "max_perplexity_increase_percent": 0.1},
}


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A layer of the shipped model, with weights of four bits in groups, in compressed-tensors' layout."""
    monkeypatch.chdir(tmp_path)
    flags = ["--override=num_hidden_layers=1", "--precision=int4", "--granularity=group", "--group-size=32"]
    monkeypatch.setattr(sys, "argv", ["haloctl", "--model=tiny-llama", *flags])
    quantizer.main()
    for name in TOKENIZER_FILES:
        if (SHIPPED / "tiny-llama" / name).is_file():
            shutil.copy(SHIPPED / "tiny-llama" / name, tmp_path / "outputs")
    return (tmp_path / "outputs").rename(tmp_path / "tiny-llama-w4a16")


def test_a_model_that_comes_quantized_is_right_against_its_own_numbers(fresh: Haloctl, quantized: Path) -> None:
    done = fresh.run("submit", fresh.job(**{**JOB, "model": str(quantized)}), "--wait")
    assert done.code == 0, done.err
    (row,) = fresh.json("matrix")
    assert row["variant"] == "tiny-llama-w4a16-INT4-TP1"
    assert {stage: cell["state"] for stage, cell in row["stages"].items()} == dict.fromkeys(
        ("export", "compile", "numerics"), "succeeded"
    )
