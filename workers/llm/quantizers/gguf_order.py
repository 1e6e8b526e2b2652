"""The order of rows in a GGUF file: llama.cpp puts the pairs that rotate together side by side."""

from typing import Any

import torch

from workers.llm.quantizers.writing import Quantized

PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def heads_of(name: str, config: Any) -> int | None:
    """How many heads a tensor's rows are of, where llama.cpp has reordered them: pairs that rotate lie side by side."""
    key = next((key for word, key in PERMUTED.items() if f".{word}.weight" in name), None)
    return getattr(config, key) if key and config.model_type in ("llama", "mistral") else None


def in_order(rows: torch.Tensor, heads: int | None) -> torch.Tensor:
    """A tensor's rows as Hugging Face has them: each head's first halves of the pairs, then the second."""
    if heads is None:
        return rows
    return rows.view(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rows_in_order(one: Quantized, heads: int | None) -> Quantized:
    """The same for values and their scales."""
    zero = None if one.zero_point is None else in_order(one.zero_point, heads)
    return Quantized(in_order(one.values, heads), in_order(one.scale, heads), zero)
