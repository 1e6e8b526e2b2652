"""Job files whose values are all of the right kind, combined by chance: what is wrong is how they go together."""

import random
from collections.abc import Iterator
from typing import Any

import yaml

from jobs.engines import ENGINES
from jobs.exporters import EXPORTERS
from jobs.job_file.spec import STAGE_NAMES
from jobs.quantizers import QUANTIZERS
from jobs.stages import STAGES
from jobs.targets import TARGETS
from jobs.variants import Attention, BenchmarkPlacement, KvCache, KvPrecision, Precision
from tests.fuzz.harness import Case

COUNT = 600
MODELS = (
    "tiny-llama",
    "tiny-llama",
    "tiny-llama",
    "shape:llama3.1-8b",
    "shape:llama3.1-405b",
    ["tiny-llama", "shape:llama3.1-8b"],
)

#: Some values of each key, by section.
VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "variants": {
        "precision": tuple(Precision),
        "tp": (1, 2, 3, 8, 64),
        "pp": (1, 2, 64),
        "target": tuple(TARGETS),
        "attention": tuple(Attention),
        "kv_cache": tuple(KvCache),
        "kv_precision": tuple(KvPrecision),
        "engine": tuple(ENGINES),
        "nodes": (1, 2, 64),
        "quantizer": tuple(QUANTIZERS),
        "exporter": tuple(EXPORTERS),
        "toolchain": ("default", "iree-3.12", "vllm", "torch-2.9", "nowhere", "llm-compressor-0.14"),
        "env": ({"default": {}, "a": {"HSA_ENABLE_SDMA": 0}}, ["default", {"name": "b", "OMP_NUM_THREADS": 2}]),
        "flags": ({"default": [], "o3": ["--iree-opt-level=O3"]}, {"x": ["--iree-load-plugin=./x.so"]}),
        "exclude": ([{"tp": 1}], [{"model": "tiny-llama"}], [{"precision": "f16"}, {"target": "cpu", "tp": 2}]),
    },
    "workload": {
        "batch": (1, [1, 4], [4, 1], 65536),
        "prompt_tokens": (1, 64, 1 << 20, [32, 128]),
        "new_tokens": (1, 32, 1000),
        "kv_block_tokens": (16, 32),
    },
    "quantize": {
        "windows": (1, 1 << 20),
        "granularity": ("tensor", "channel"),
        "inputs": ("static", "dynamic"),
        "group_size": (16, 128),
        "options": ({"haloctl": {"clip": True}}, {"brevitas": {"awq": "scale"}}, {"gguf": {"file": "job.yaml"}}, {}),
    },
    "compile": {"flags": ([], ["--iree-opt-level=O3"], ["--iree-hal-dump-executable-files-to=/tmp"])},
    "torch": {
        "compile_mode": ("default", "max-autotune"),
        "inductor": ({"freezing": True}, {}),
        "tunable_op": (True, False),
        "tunable_op_ms": (1, 100),
    },
    "numerics": {"windows": (1, 64), "max_kl_mean": (1e-9, 1e9), "text": ("job.yaml", "./nowhere")},
    "benchmark": {
        "warmup": (0, 3),
        "repetitions": (1, 100),
        "processes": (1, 7, 600),
        "order": ("sequential", "interleaved", "shuffled"),
        "generations": (0, 3),
        "max_disturbed_reruns": (0, 10),
        "exclusive": (True, False),
        "on": tuple(BenchmarkPlacement),
    },
    "gate": {
        "against": ("last-good", "target", "toolchain:iree-3.12", "toolchain:default", "toolchain:nowhere"),
        "metrics": ("ttft_ms", ["itl_ms", "compile_s"], "torch_compile_s"),
        "slowdown_percent": (0.5, 100),
        "runs": (1, 9),
    },
}

OVERRIDES: tuple[dict[str, Any], ...] = (
    {"num_hidden_layers": 1},
    {"num_hidden_layers": 256},
    {"rope_theta": 1e6},
    {"tie_word_embeddings": True},
    {"max_position_embeddings": 8},
    {"vocab_size": 8},
    {"model_type": "qwen2"},
    {"model_type": 7},
    {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
    {"quantization_config": {"quant_method": "gptq"}},
    {"layer_types": ["full_attention"]},
    {"hidden_act": "nonsense"},
    {"attention_bias": True, "head_dim": 32},
)


def cases(chance: random.Random) -> Iterator[Case]:
    """Yield all job files."""
    for number in range(COUNT):
        text = yaml.safe_dump(_job(chance), sort_keys=False)
        argv = ("submit", "job.yaml", *(["--dry-run"] if chance.random() < 0.7 else []))
        yield Case(f"plausible job {number}", argv, {"job.yaml": text})


def _job(chance: random.Random) -> dict[str, Any]:
    job: dict[str, Any] = {"name": "fuzz", "model": chance.choice(MODELS)}
    if chance.random() < 0.7:
        job["stages"] = sorted(chance.sample(list(STAGES), chance.randint(1, len(list(STAGE_NAMES.names())))))
    if chance.random() < 0.2:
        job["overrides"] = chance.choice(OVERRIDES)
    for section, keys in VALUES.items():
        if chance.random() < (0.9 if section == "variants" else 0.25):
            job[section] = {key: _value(chance, values) for key, values in keys.items() if chance.random() < 0.12}
    return job


def _value(chance: random.Random, values: tuple[Any, ...]) -> Any:
    value = chance.choice(values)
    other = chance.choice(values)
    is_many = chance.random() < 0.2 and isinstance(value, str) and value != other
    plain = [str(each) if isinstance(each, str) else each for each in (value, other)]
    return plain if is_many else plain[0]
