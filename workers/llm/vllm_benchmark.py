r"""Time whole generations of a model in vLLM: a batch of requests, step by step in its engine's own loop.

    python -m workers.llm.vllm_benchmark --model tiny-llama --precision f32 --batch 1 --prompt-tokens 64 \
        --new-tokens 32 --repetitions 6 --report outputs/benchmark_bs1_t64.json

A batch's time to first token ends when every request has one; each further token of all of them is a step. Writes
{"load_s", "vllm", "generations": [{"ttft_ms", "steps_ms"}]}; warm-up is in it like all others. Prefixes are not cached:
every prompt is the same. By itself vLLM takes most of a device's memory, and of the node's where that is the device: it
is told how much its cache may have, which is twice what this workload needs.
"""

import argparse
import importlib
import json
import math
import os
import tempfile
import time
from itertools import pairwise
from typing import Any

from workers.llm.model_source import load_model
from workers.llm.program import BadInput, add_generation_arguments, add_model_arguments, parse_overrides, positive, run

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
BLOCK_TOKENS = 256  #: no block of vLLM's is larger for a model with one kind of attention; 16 and 128 are usual
TOKEN = 5  #: every token of the prompt: time does not depend on which


def main() -> None:
    """Time one workload."""
    args = _arguments()
    started = time.perf_counter()
    engine, version = open_engine(args)
    load_s = time.perf_counter() - started
    found = [generate(engine, args, f"{number}") for number in range(args.repetitions)]
    report = {"load_s": load_s, "vllm": version, "generations": found}
    args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.llm.vllm_benchmark", description=__doc__.split("\n")[0])
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=DTYPES, required=True)
    parser.add_argument("--tp", type=positive, default=1)
    add_generation_arguments(parser)
    return parser.parse_args()


def open_engine(args: argparse.Namespace) -> tuple[Any, str]:
    """vLLM's engine with the model loaded, and its version. Raises BadInput where it is not installed."""
    os.environ.setdefault("VLLM_RPC_BASE_PATH", folder_of_sockets())
    try:
        vllm: Any = importlib.import_module("vllm")
    except ImportError as problem:
        raise BadInput(f"vllm cannot be imported: {problem}; give the variant a toolchain that has it") from None
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    how = vllm.EngineArgs(
        model=str(model.folder),
        hf_overrides=model.overrides,
        dtype=DTYPES[args.precision],
        tensor_parallel_size=args.tp,
        max_model_len=args.prompt_tokens + args.new_tokens,
        max_num_seqs=args.batch,
        max_num_batched_tokens=args.batch * (args.prompt_tokens + args.new_tokens),
        kv_cache_memory_bytes=cache_bytes(model.config, args),
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    return vllm.LLMEngine.from_engine_args(how), vllm.__version__


def folder_of_sockets() -> str:
    """Where temporary files are, as shortly as it can be said from here: a socket's path has 107 characters at most."""
    folder = tempfile.gettempdir()
    return min(folder, os.path.relpath(folder), key=len)


def cache_bytes(config: Any, args: argparse.Namespace) -> int:
    """What each rank may hold of keys and values: twice what whole blocks of every request's tokens take."""
    rows = config.get_text_config()
    head_size = getattr(rows, "head_dim", None) or rows.hidden_size // rows.num_attention_heads
    kv_heads = max((getattr(rows, "num_key_value_heads", None) or rows.num_attention_heads) // args.tp, 1)
    blocks = args.batch * math.ceil((args.prompt_tokens + args.new_tokens) / BLOCK_TOKENS)
    token_bytes = 2 * rows.num_hidden_layers * kv_heads * head_size * ITEM_BYTES[args.precision]
    return int(2 * (blocks + 1) * BLOCK_TOKENS * token_bytes)


def generate(engine: Any, args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The times of one generation."""
    vllm: Any = importlib.import_module("vllm")
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=args.new_tokens, ignore_eos=True, detokenize=False)
    prompt = {"prompt_token_ids": [TOKEN] * args.prompt_tokens}
    times_ns = [time.perf_counter_ns()]
    for row in range(args.batch):
        engine.add_request(f"{name}-{row}", prompt, sampling)
    made: dict[str, int] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            made[output.request_id] = len(output.outputs[0].token_ids)
        if len(made) == args.batch and min(made.values()) == len(times_ns):
            times_ns.append(time.perf_counter_ns())
    if len(times_ns) != 1 + args.new_tokens:
        raise BadInput(f"vllm gave {len(times_ns) - 1} of {args.new_tokens} tokens in steps of one token a row")
    ttft_ms, *steps_ms = ((after - before) / 1e6 for before, after in pairwise(times_ns))
    print(f"batch {args.batch}, {args.prompt_tokens} prompt tokens: first token after {ttft_ms:.2f} ms", flush=True)
    return {"ttft_ms": ttft_ms, "steps_ms": steps_ms}


if __name__ == "__main__":
    run(main)
