"""The config.json beside a program: everything that another program needs to load and call it."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from workers.llm.export.entry_points import EntryPoint
from workers.llm.export.global_tensors import PARAMETER_SCOPE
from workers.llm.export.kv_cache import CacheLayout
from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import QuantizedLayout, quantization_config
from workers.llm.quantized.quantized_model import ProgramPrecision
from workers.llm.weights.parameters import file_name

FORMAT = 1
#: how the entry points are called, for people and programs that have only the config
CALLING = {
    "prefill": "tokens holds each row's prompt from its first token on, padded behind with any tokens to the smallest "
    "of prompt_tokens that holds the longest; lengths holds how many tokens of each row are its prompt, 1 to all. The "
    "result is the logits after each row's last token. A prompt longer than the largest of prompt_tokens can't be run.",
    "decode": "tokens holds one token of each row, positions where it stands in its row, counted from 0: the length of "
    "the prompt for the first, and less than cache_length.",
    "bounds": "A row with a length, position, token or block that is out of bounds gets logits that are not numbers "
    "(NaN). The other rows are what they would be without it.",
}
_PACKAGES = ("torch", "transformers", "iree-base-compiler", "iree-turbine")


def program_config(
    model: LocalModel,
    precision: ProgramPrecision,
    quantized: QuantizedLayout | None,
    attention: str,
    tp: int,
    layout: CacheLayout,
    entries: Sequence[EntryPoint],
    block_tables: Mapping[int, str],
) -> dict[str, Any]:
    """Return shapes, dtypes, buckets, entry points, order of arguments and devices of a program.

    `block_tables` are the files with an initial block table, by batch size; empty where the cache is not paged.
    """
    dtype = str(precision.dtype).removeprefix("torch.")
    vocab_size = model.config.vocab_size
    return {
        "format": FORMAT,
        "model": {**model.describe(), "config": model.config.to_dict()},
        "precision": precision.name,
        **({"fp8": precision.fp8, "quantization_config": quantization_config(quantized)} if quantized else {}),
        "dtype": dtype,
        "attention": attention,
        "tp": tp,
        "devices": tp,
        "batch_sizes": sorted({entry.batch for entry in entries}),
        "prompt_tokens": sorted({entry.tokens for entry in entries if entry.kind == "prefill"}),
        "cache_length": layout.length,
        **({"block_tokens": layout.block_tokens} if layout.block_tokens else {}),
        "vocab_size": vocab_size,
        "parameter_scope": PARAMETER_SCOPE,
        "parameter_files": [file_name(rank) for rank in range(tp)] if model.has_weights else [],
        "calling": CALLING,
        "entry_points": [_describe(entry, vocab_size, dtype, layout, block_tables) for entry in entries],
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }


def _describe(
    entry: EntryPoint, vocab_size: int, dtype: str, layout: CacheLayout, block_tables: Mapping[int, str]
) -> dict[str, Any]:
    arguments: list[dict[str, Any]] = [
        {"name": argument, "shape": list(shape), "dtype": "int64", "device": 0}
        for argument, shape in entry.arguments(layout).items()
    ]
    if block_tables:
        blocks = max(block_tables) * layout.blocks
        arguments[-1] |= {"file": block_tables[entry.batch], "block_tokens": layout.block_tokens, "pool_blocks": blocks}
    results = [{"name": "logits", "shape": [entry.batch, 1, vocab_size], "dtype": dtype}]
    tokens = {"prompt_tokens": entry.tokens} if entry.kind == "prefill" else {}
    return {
        "name": entry.name,
        "kind": entry.kind,
        "batch": entry.batch,
        **tokens,
        "arguments": arguments,
        "results": results,
    }
