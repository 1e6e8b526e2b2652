"""The config.json beside a program: everything that another program needs to load and call it."""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import torch

from workers.llm.export.entry_points import EntryPoint
from workers.llm.export.global_tensors import PARAMETER_SCOPE
from workers.llm.export.kv_cache import CacheLayout
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import QuantizedLayout, quantization_config
from workers.llm.program_format import FORMAT
from workers.llm.quantized.quantized_model import ProgramPrecision
from workers.llm.weights.parameters import file_name

#: how the entry points are called, for people and programs that have only the config
CALLING = {
    "prefill": "tokens holds each row's prompt from its first token on, padded behind with any tokens to the smallest "
    "of prompt_tokens that holds the longest; lengths holds how many tokens of each row are its prompt, 1 to all. The "
    "result is the logits after each row's last token. A prompt longer than the largest of prompt_tokens can't be run.",
    "decode": "tokens holds one token of each row, positions where it stands in its row, counted from 0: the length of "
    "the prompt for the first. A decode of a context reads so many slots of each row, so positions are less than it, "
    "and less than cache_length: take the smallest context that holds all rows.",
    "extend": "As prefill, for the part of a prompt whose first token stands at starts, with everything before it in "
    "the cache: the next chunk of a long prompt, or what follows blocks that another row has filled. starts + lengths "
    "is at most the context.",
    "score": "As extend, with the log probability of each of targets after the token at its place (targets are tokens "
    "shifted by one), the most probable token and its log probability. Behind a row's tokens, and for a target that is "
    "none, such as -1, the result is not a number.",
    "sample": "Chooses tokens from the logits that a call returned. temperature 0 is the largest logit; top_k 0 and "
    "top_p 1 are off. Of the top_k largest logits it keeps the fewest that have the probability top_p at that "
    "temperature, all of equal ones. The same seed and logits give the same token.",
    "next_tokens": "The token with the largest logit of each row, chosen on the device. A greedy step reads these "
    "numbers alone.",
    "block_table": "The blocks of each row, first to last, of a paged cache: 1 to pool_blocks - 1. Block 0 is "
    "nobody's, and columns behind a row's last token may hold anything. A decode takes the first columns of a row.",
    "bounds": "A row with a length, position, token or block that is out of bounds gets logits that are not numbers "
    "(NaN) and the token -1. The other rows are what they would be without it; a row that only fills a batch may be "
    "such a row.",
}
_ALWAYS_TOLD = ("next_tokens", "bounds")
_PACKAGES = ("torch", "transformers", "iree-base-compiler", "iree-turbine")


def program_config(
    model: LocalModel,
    precision: ProgramPrecision,
    quantized: QuantizedLayout | None,
    attention: str,
    tp: int,
    layout: CacheLayout,
    entries: Sequence[EntryPoint],
) -> dict[str, Any]:
    """Return shapes, dtypes, buckets, entry points, order of arguments and devices of a program."""
    vocab_size = model.config.vocab_size
    known = {*(entry.kind for entry in entries), *(["block_table"] if layout.block_tokens else []), *_ALWAYS_TOLD}
    return {
        "format": FORMAT,
        "model": {**model.describe(), "config": model.config.to_dict()},
        "precision": precision.name,
        **({"fp8": precision.fp8, "quantization_config": quantization_config(quantized)} if quantized else {}),
        "dtype": _dtype(precision.dtype),
        "attention": attention,
        "tp": tp,
        "devices": tp,
        "batch_sizes": sorted(_batches(entries, "prefill") & _batches(entries, "decode")),
        "prompt_tokens": sorted({entry.tokens for entry in entries if entry.kind == "prefill"}),
        "cache_length": layout.length,
        **({"block_tokens": layout.block_tokens} if layout.block_tokens else {}),
        "vocab_size": vocab_size,
        "parameter_scope": PARAMETER_SCOPE,
        "parameter_files": [file_name(rank) for rank in range(tp)] if model.has_weights else [],
        "calling": {key: text for key, text in CALLING.items() if key in known},
        "entry_points": [_describe(entry, vocab_size, precision.dtype, layout) for entry in entries],
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }


def _batches(entries: Sequence[EntryPoint], kind: str) -> set[int]:
    return {entry.batch for entry in entries if entry.kind == kind}


def block_table_file(entry: EntryPoint, layout: CacheLayout) -> str | None:
    """Return the name of the file with a block table for an entry point; None for a function that takes none."""
    if "block_table" not in entry.argument_names(layout):
        return None
    context = "" if entry.context is None else f"_c{entry.context}"
    return f"block_table_bs{entry.batch}{context}.npy"


def _describe(entry: EntryPoint, vocab_size: int, dtype: torch.dtype, layout: CacheLayout) -> dict[str, Any]:
    arguments = [_tensor(name, meta) for name, meta in entry.arguments(layout, vocab_size, dtype).items()]
    for argument in arguments:
        if argument["name"] == "block_table":
            file = block_table_file(entry, layout)
            argument |= {"file": file, "block_tokens": layout.block_tokens, "pool_blocks": layout.pool}
    return {
        "name": entry.name,
        "kind": entry.kind,
        "batch": entry.batch,
        **entry.sizes,
        "arguments": arguments,
        "results": [_tensor(name, meta) for name, meta in entry.results(vocab_size, dtype).items()],
    }


def _tensor(name: str, meta: TensorMeta) -> dict[str, Any]:
    return {"name": name, "shape": list(meta.shape), "dtype": _dtype(meta.dtype), "device": 0}


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
