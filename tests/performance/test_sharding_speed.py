"""Sharding a checkpoint against `cp` on the same disk in the same run. Nothing is asserted; `make bench` prints."""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).parents[2]
GIGABYTES = float(os.environ.get("HALOCTL_BENCH_CHECKPOINT_GB", "8"))
FILES = 4
TP = 8
RUNS = 3
VOCAB, HIDDEN, INNER, KV = 128256, 4096, 14336, 1024
PIECE = os.urandom(64 << 20)


def tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of a llama like the 8B, with this many layers."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(layers):
        for name, shape in {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (KV, HIDDEN),
            "self_attn.v_proj": (KV, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def size_bytes(layers: int) -> int:
    return sum(2 * math.prod(shape) for _, shape in tensors(layers))


def write_file(path: Path, group: list[tuple[str, tuple[int, ...]]]) -> None:
    header, at = {}, 0
    for name, shape in group:
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, at, len(PIECE)):
            file.write(PIECE[: at - start])


def write_checkpoint(folder: Path, layers: int) -> None:
    """Several files of about the same size, their index and a config."""
    folder.mkdir()
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(FILES)]
    share, done = size_bytes(layers) / FILES, 0
    for name, shape in tensors(layers):
        groups[min(int(done / share), FILES - 1)].append((name, shape))
        done += 2 * math.prod(shape)
    names: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05}-of-{FILES:05}.safetensors"
        write_file(folder / file, group)
        names |= dict.fromkeys((name for name, _ in group), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    config = json.loads((ROOT / "jobs/recipes/shapes/llama3.1-8b.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))


def copy(model: Path, folder: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(["cp", "-r", model, folder], check=True)
    return time.perf_counter() - begin


def shard(model: Path, folder: Path) -> dict[str, float]:
    """Export to 8 ranks; the program tells how long the parameters took and its memory at the peak."""
    folder.mkdir()
    argv = [sys.executable, "-m", "workers.llm.programs.export", f"--model={model}", "--precision=bf16", f"--tp={TP}"]
    argv += ["--batch", "1", "--prompt-tokens", "64", "--cache-length=96"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)
    report: dict[str, float] = json.loads((folder / "outputs/export.json").read_text())
    return report


def test_sharding_to_eight_ranks_against_cp(tmp_path: Path) -> None:
    layers = max(1, round((GIGABYTES * 1e9 - size_bytes(0)) / (size_bytes(1) - size_bytes(0))))
    write_checkpoint(tmp_path / "model", layers)
    os.sync()
    size, ratios = size_bytes(layers), []
    for _ in range(RUNS):
        copy_s = copy(tmp_path / "model", tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")
        os.sync()
        report = shard(tmp_path / "model", tmp_path / "shards")
        shutil.rmtree(tmp_path / "shards")
        os.sync()
        ratios.append(copy_s / report["parameters_s"])
        print(
            f"\n{size / 1e9:.1f} GB to {TP} ranks in {report['parameters_s']:.1f} s, cp in {copy_s:.1f} s: "
            f"{ratios[-1]:.2f} of its speed; peak memory {report['peak_rss_bytes'] / 1e9:.2f} GB"
        )
