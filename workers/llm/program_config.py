"""The config.json beside a program: all that another program needs to load and to call it."""

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import torch

from workers.llm.assembly import PARAMETER_SCOPE
from workers.llm.entry_points import EntryPoint
from workers.llm.model_source import Model
from workers.llm.parameters import file_name

FORMAT = 1
_PACKAGES = ("torch", "transformers", "iree-base-compiler", "iree-turbine")


def program_config(
    model: Model,
    precision: str,
    dtype: torch.dtype,
    attention: str,
    tp: int,
    cache_length: int,
    entries: Sequence[EntryPoint],
) -> dict[str, Any]:
    """Shapes, types, buckets, entry points, order of arguments and devices of a program."""
    name = str(dtype).removeprefix("torch.")
    vocab_size = model.config.vocab_size
    return {
        "format": FORMAT,
        "model": {
            "name": model.source.name,
            "type": model.config.model_type,
            "source": model.source.text,
            "overrides": model.overrides,
            "config": model.config.to_dict(),
        },
        "precision": precision,
        "dtype": name,
        "attention": attention,
        "tp": tp,
        "devices": tp,
        "batch_sizes": sorted({entry.batch for entry in entries}),
        "prompt_tokens": sorted({entry.tokens for entry in entries if entry.kind == "prefill"}),
        "cache_length": cache_length,
        "vocab_size": vocab_size,
        "parameter_scope": PARAMETER_SCOPE,
        "parameter_files": [file_name(rank) for rank in range(tp)] if model.has_weights else [],
        "entry_points": [_describe(entry, vocab_size, name) for entry in entries],
        "versions": {package: importlib.metadata.version(package) for package in _PACKAGES},
    }


def _describe(entry: EntryPoint, vocab_size: int, dtype: str) -> dict[str, Any]:
    arguments = [
        {"name": "tokens", "shape": [entry.batch, entry.tokens], "dtype": "int64", "device": 0},
        {"name": entry.second_argument, "shape": [entry.batch], "dtype": "int64", "device": 0},
    ]
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
