r"""Time whole generations of a model in vLLM: a batch of requests, step by step in the loop of its engine.

    python -m workers.llm.programs.vllm_benchmark --model tiny-llama --precision f32 --batch 1 --prompt-tokens 64 \
        --new-tokens 32 --repetitions 6 --report outputs/benchmark_bs1_t64.json

A batch's time to first token ends when every request has one; each further token of all requests is a step. Writes
{"load_s", "vllm", "generations": [{"ttft_ms", "steps_ms", "begin_s"}]}, warm-up included; generations begin at Unix
times. Prefix caching is off, because every prompt is the same. By default vLLM takes most of a device's memory, or of
the node's on a CPU; its KV cache is limited to twice what the workload needs.
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

from workers.llm.command_line import (
    BadInput,
    add_generation_arguments,
    add_model_arguments,
    parse_overrides,
    positive_int,
    run,
)
from workers.llm.models.model_source import load_model

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
BLOCK_TOKENS = 256  #: upper bound of vLLM's block size for a model with one kind of attention; 16 and 128 are usual
TOKEN = 5  #: every token of the prompt: times do not depend on it


def main() -> None:
    """Time the workload of the command line."""
    args = parse_arguments()
    started = time.perf_counter()
    engine, version = open_engine(args)
    load_s = time.perf_counter() - started
    generations = [generate(engine, args, f"{number}") for number in range(args.repetitions)]
    report = {"load_s": load_s, "vllm": version, "generations": generations}
    args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.vllm_benchmark", description=__doc__.split("\n")[0]
    )
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=DTYPES, required=True)
    parser.add_argument("--tp", type=positive_int, default=1)
    add_generation_arguments(parser)
    return parser.parse_args()


def open_engine(args: argparse.Namespace) -> tuple[Any, str]:
    """Load the model into vLLM's engine; return it and vLLM's version. Raises BadInput when vLLM is not installed."""
    # the shortest path to the temporary files: a socket's path has at most 107 characters
    temporary = tempfile.gettempdir()
    os.environ.setdefault("VLLM_RPC_BASE_PATH", min(temporary, os.path.relpath(temporary), key=len))
    try:
        vllm: Any = importlib.import_module("vllm")
    except ImportError as problem:
        raise BadInput(f"vllm cannot be imported: {problem}; use a toolchain that has it for the variant") from None
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    engine_arguments = vllm.EngineArgs(
        model=str(model.folder),
        hf_overrides=model.overrides,
        trust_remote_code=False,
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
    return vllm.LLMEngine.from_engine_args(engine_arguments), vllm.__version__


def cache_bytes(config: Any, args: argparse.Namespace) -> int:
    """Return the size of each rank's KV cache: twice the whole blocks that all requests' tokens take."""
    text_config = config.get_text_config()
    head_size = getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
    kv_heads = max((getattr(text_config, "num_key_value_heads", None) or text_config.num_attention_heads) // args.tp, 1)
    blocks = args.batch * math.ceil((args.prompt_tokens + args.new_tokens) / BLOCK_TOKENS)
    token_bytes = 2 * text_config.num_hidden_layers * kv_heads * head_size * ITEM_BYTES[args.precision]
    return int(2 * (blocks + 1) * BLOCK_TOKENS * token_bytes)


def generate(engine: Any, args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Time one generation. Raises BadInput when vLLM returns several tokens of a row in one step."""
    vllm: Any = importlib.import_module("vllm")
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=args.new_tokens, ignore_eos=True, detokenize=False)
    prompt = {"prompt_token_ids": [TOKEN] * args.prompt_tokens}
    begin_s, times_ns = time.time(), [time.perf_counter_ns()]
    for row in range(args.batch):
        engine.add_request(f"{name}-{row}", prompt, sampling)
    counts: dict[str, int] = {}  # new tokens by request
    while engine.has_unfinished_requests():
        for output in engine.step():
            counts[output.request_id] = len(output.outputs[0].token_ids)
        if len(counts) == args.batch and min(counts.values()) == len(times_ns):
            times_ns.append(time.perf_counter_ns())
    if len(times_ns) != 1 + args.new_tokens:
        raise BadInput(f"vllm returned {len(times_ns) - 1} of {args.new_tokens} tokens in steps of one token a row")
    ttft_ms, *steps_ms = ((after - before) / 1e6 for before, after in pairwise(times_ns))
    print(f"batch {args.batch}, {args.prompt_tokens} prompt tokens: first token after {ttft_ms:.2f} ms", flush=True)
    return {"ttft_ms": ttft_ms, "steps_ms": steps_ms, "begin_s": begin_s}


if __name__ == "__main__":
    run(main, has_children=True)
