"""The attention kernels that a program can be exported with.

`eager` is transformers' own: matmul, softmax, matmul. `sdpa` is one fused operation, prepared here for matrix units:
transformers' version repeats keys and values for grouped queries, and keeps sizes that matrix units cannot use.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

KERNELS = ("sdpa", "eager")
#: rows and columns of the smallest matrix tile of CDNA and of tensor cores. IREE 3.13 uses no MFMA for attention
#: unless both query rows and keys are a multiple of it, and fails to compile for 8, 24, ... query rows in f16.
TILE = 16
#: the value of a masked score: far below any score, and finite in the dtype even times log2(e)
MASKED = {torch.float32: -1e30, torch.bfloat16: -1e30, torch.float16: -3e4}

_FUSED = "haloctl_sdpa"


def attention_implementation(kernel: str) -> str:
    """Return transformers' name of a kernel."""
    return _FUSED if kernel == "sdpa" else kernel


def unsupported_reason(config: Any, kernel: str) -> str | None:
    """Return why a kernel can't compute a model's attention, or None."""
    if kernel == "sdpa" and getattr(config, "attn_logit_softcapping", None):
        return "it caps its scores (attn_logit_softcapping), which attention sdpa cannot do: use attention: eager"
    return None


def masked_keys(kernel: str, keys: int) -> int:
    """Return how many keys a mask must cover, for a kernel by its transformers name: `sdpa` pads to whole tiles."""
    return round_up(keys) if kernel == _FUSED else keys


def round_up(size: int, tile: int = TILE) -> int:
    """Return the next multiple of a tile."""
    return -(-size // tile) * tile


def fused_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention `[batch, heads, tokens, head_dim]` with an additive mask; returns `[batch, tokens, heads, head_dim]`.

    For one decoded token, queries that share keys and values become rows of one matrix; for a prompt, keys and values
    are repeated. Rows that pad a tile are cut off again; keys that pad one are masked (`masked_keys`).
    """
    batch, heads, tokens, dim = query.shape
    kv_heads = key.shape[1]
    if tokens == 1:
        query = query.reshape(batch, kv_heads, heads // kv_heads, dim)
    elif heads != kv_heads:
        key, value = (_repeat(tensor, heads // kv_heads) for tensor in (key, value))
    rows, keys = query.shape[2], key.shape[2]
    padding_rows, padding_keys = _padding_rows(rows, query.dtype), round_up(keys) - keys
    mask = _pad(attention_mask, padding_rows) if tokens > 1 else attention_mask
    output = functional.scaled_dot_product_attention(
        _pad(query, padding_rows), _pad(key, padding_keys), _pad(value, padding_keys), attn_mask=mask, scale=scaling
    )
    output = output[:, :, :rows].reshape(batch, heads, tokens, dim)
    return output.transpose(1, 2).contiguous(), None


def _padding_rows(rows: int, dtype: torch.dtype) -> int:
    """Return the rows that pad a tile.

    f32 is not padded: it has no fast matrix units, and a CPU pays for every row (2.06 ms a token against 1.68).
    """
    return round_up(rows) - rows if rows > 1 and dtype != torch.float32 else 0


def _repeat(tensor: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, tokens, dim = tensor.shape
    wide = tensor[:, :, None].expand(batch, heads, times, tokens, dim)
    return wide.reshape(batch, heads * times, tokens, dim)


def _pad(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    return functional.pad(tensor, (0, 0, 0, rows)) if rows else tensor


AttentionInterface.register(_FUSED, fused_attention)
