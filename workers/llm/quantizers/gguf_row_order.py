"""The order of rows in a GGUF file: llama.cpp puts the two rows that rotate together side by side."""

from dataclasses import replace
from typing import Any

import torch

from workers.llm.quantizers.quantized_weight import QuantizedWeight

PERMUTED = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def heads_of(name: str, config: Any) -> int | None:
    """Return the number of heads in a tensor whose rows llama.cpp has reordered, else None."""
    key = next((key for part, key in PERMUTED.items() if f".{part}.weight" in name), None)
    return getattr(config, key) if key and config.model_type in ("llama", "mistral") else None


def restore_row_order(rows: torch.Tensor, heads: int | None) -> torch.Tensor:
    """Return rows in Hugging Face's order: in each head the first rows of all pairs, then the second ones."""
    if heads is None:
        return rows
    return rows.view(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def restore_weight_row_order(weight: QuantizedWeight, heads: int | None) -> QuantizedWeight:
    """Return a weight whose values, scales and zero points are in Hugging Face's row order."""
    zero = None if weight.zero_point is None else restore_row_order(weight.zero_point, heads)
    values, scale = restore_row_order(weight.values, heads), restore_row_order(weight.scale, heads)
    return replace(weight, values=values, scale=scale, zero_point=zero)
