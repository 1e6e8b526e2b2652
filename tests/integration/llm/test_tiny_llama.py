"""The model that ships: small, divisible, trained, and made again by its own script."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from jobs.models import SHIPPED

ROOT = Path(__file__).parents[3]
FOLDER = SHIPPED / "tiny-llama"


def test_the_shipped_model_is_small_and_divides_by_eight_ranks() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert (FOLDER / "model.safetensors").stat().st_size < 10e6
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        assert config[key] % 8 == 0, key
    assert not config["tie_word_embeddings"]


def test_training_is_worth_its_name_and_the_model_card_says_the_figures() -> None:
    training = json.loads((FOLDER / "training.json").read_text())
    assert training["perplexity"] < training["unigram_perplexity"] / 10 < training["untrained_perplexity"] / 10
    card = (FOLDER / "README.md").read_text()
    for figure in ("perplexity", "unigram_perplexity", "untrained_perplexity"):
        assert f"{training[figure]:.4g}" in card, figure


def test_the_script_makes_the_same_model_again(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text((FOLDER / "heldout.txt").read_text() * 5)
    digests = {train(text, tmp_path / name) for name in ("once", "again")}
    assert len(digests) == 1
    names = {path.name for path in (tmp_path / "once").iterdir()}
    assert names == {path.name for path in FOLDER.iterdir()} - {"README.md"}


def train(text: Path, output: Path) -> str:
    argv = [sys.executable, "-m", "workers.llm.programs.train_tiny_llama", "--text", str(text), "--output", str(output)]
    done = subprocess.run([*argv, "--steps=3"], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()
