"""The fine-tuning program on the shipped model: what it learns, what it writes, and what it refuses."""

import json
import math
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from jobs.models import SHIPPED
from workers.llm.command_line import BadInput, ProgramFailed
from workers.llm.programs import finetune

ROOT = Path(__file__).parents[3]
TEXT = ROOT / "jobs" / "recipes" / "texts" / "us-constitution.txt"
TINY = SHIPPED / "tiny-llama"
FLAGS = {
    "model": "tiny-llama",
    "data": TEXT,
    "method": "lora",
    "steps": 12,
    "batch": 4,
    "sequence-tokens": 64,
    "learning-rate": 5e-3,
    "warmup": 0,
    "seed": 1,
    "precision": "f32",
}


def run(folder: Path, *more: str, **flags: object) -> dict[str, Any]:
    """Run the program in a folder; returns its report."""
    named = {**FLAGS, **{name.replace("_", "-"): value for name, value in flags.items()}}
    argv = ["finetune", *(f"--{name}={value}" for name, value in named.items()), *more]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", argv)
        finetune.main()
    report: dict[str, Any] = json.loads((folder / "outputs" / "finetune.json").read_text())
    return report


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with what an adapter's training left, and its report."""
    folder = tmp_path_factory.mktemp("tuned")
    return folder, run(folder)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        values: torch.Tensor = model.eval()(torch.arange(3, 40)[None]).logits
    return values


def test_an_adapter_learns_its_text_at_the_cost_of_another(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, report = tuned
    held_out, other = report["perplexity"]["held_out"], report["perplexity"]["other"]
    assert held_out["after"] < 0.75 * held_out["before"]
    assert other["after"] > other["before"]
    assert len(report["losses"]) == len(report["step_s"]) == FLAGS["steps"]
    assert report["losses"][-1] < report["losses"][0]
    assert report["trained_parameters"] < 300_000


def test_the_checkpoint_is_the_base_with_the_adapter(tuned: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = tuned
    with tarfile.open(folder / "outputs" / "adapter.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    base = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    before = logits(base)
    adapted = logits(PeftModel.from_pretrained(base, str(tmp_path / "adapter")))
    merged = logits(AutoModelForCausalLM.from_pretrained(folder / "outputs", dtype=torch.float32))
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)
    assert (merged - before).abs().max() > 0.1
    assert (folder / "outputs" / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()


def test_the_same_seed_makes_the_same_weights(tuned: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run(tmp_path)
    weights = [folder / "outputs" / "model.safetensors" for folder in (tuned[0], tmp_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_all_weights_are_trained_on_examples_of_which_long_ones_are_cut(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in TEXT.read_text().split("\n\n") if text.strip()]
    (tmp_path / "examples.jsonl").write_text("\n".join(lines))
    report = run(tmp_path, method="full", data="examples.jsonl", steps=2)
    assert report["trained_parameters"] > 1_000_000
    assert not (tmp_path / "outputs" / "adapter.tar").exists()
    assert "examples were cut to sequence_tokens, 64" in report["warnings"][0]


def test_a_training_that_diverges_ends_with_the_step(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed) as failed:
        run(tmp_path, method="full", learning_rate=1.0, steps=200, sequence_tokens=32)
    assert "lower learning_rate" in failed.value.message
    assert int(failed.value.message.split()[1].rstrip(":")) < 100


def test_a_loss_that_is_no_number_is_told() -> None:
    from workers.llm.finetuning.progress import loss_problem

    assert loss_problem([2.0, math.nan]) == "the loss is nan"
    assert loss_problem([4.0] * 30) is None


@pytest.mark.parametrize(
    ("data", "more", "says"),
    [
        ('{"messages": [{"role": "user", "content": "a"}]}', (), "no chat template"),
        ('{"text": "a"}', (), "give more text"),
        ('{"text": "a"', (), r"data\.jsonl:1:13: is not JSON"),
        ('{"text": "a b c d"}\n' * 9, ("--modules", "q_prj"), r"finetune\.modules: .*q_prj"),
    ],
    ids=["no template", "too little", "broken", "no such module"],
)
def test_what_can_not_be_trained_is_refused(tmp_path: Path, data: str, more: tuple[str, ...], says: str) -> None:
    (tmp_path / "data.jsonl").write_text(data)
    with pytest.raises(BadInput, match=says):
        run(tmp_path, *more, data="data.jsonl", other_text=TEXT)
