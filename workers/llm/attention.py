"""The attention kernels a program can be exported with.

`eager` is transformers' own: matmul, softmax, matmul. `sdpa` is one fused operation, prepared here for the matrix
units: transformers' version repeats keys and values for grouped queries, and passes on sizes that cannot use them.
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
#: what a masked score is set to: far below any score, finite in the type, also after a factor of log2(e)
MASKED = {torch.float32: -1e30, torch.bfloat16: -1e30, torch.float16: -3e4}

_FUSED = "haloctl_sdpa"


def implementation(kernel: str) -> str:
    """What transformers calls a kernel."""
    return _FUSED if kernel == "sdpa" else kernel


def why_unsuited(config: Any, kernel: str) -> str | None:
    """What keeps a model's attention from being computed by a kernel."""
    if kernel == "sdpa" and getattr(config, "attn_logit_softcapping", None):
        return "it caps its scores (attn_logit_softcapping), which attention sdpa cannot do: use attention: eager"
    return None


def masked_keys(kernel: str, keys: int) -> int:
    """How many keys a mask must cover for a kernel by its name in transformers: `sdpa` fills up a tile."""
    return round_up(keys) if kernel == _FUSED else keys


def round_up(size: int, tile: int = TILE) -> int:
    """The next multiple of a tile."""
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

    One decoded token's queries that share keys and values become rows of one matrix; for a prompt, keys and values
    are repeated. Rows that fill up a tile are cut off again; keys that do so are what `masked_keys` made room for.
    """
    batch, heads, tokens, dim = query.shape
    kv_heads = key.shape[1]
    if tokens == 1:
        query = query.reshape(batch, kv_heads, heads // kv_heads, dim)
    elif heads != kv_heads:
        key, value = (_repeat(each, heads // kv_heads) for each in (key, value))
    rows, keys = query.shape[2], key.shape[2]
    more_rows, more_keys = _missing_rows(rows, query.dtype), round_up(keys) - keys
    mask = _more(attention_mask, more_rows) if tokens > 1 else attention_mask
    output = functional.scaled_dot_product_attention(
        _more(query, more_rows), _more(key, more_keys), _more(value, more_keys), attn_mask=mask, scale=scaling
    )
    output = output[:, :, :rows].reshape(batch, heads, tokens, dim)
    return output.transpose(1, 2).contiguous(), None


def _missing_rows(rows: int, dtype: torch.dtype) -> int:
    """f32 has no fast matrix units to fill, and a CPU pays for every row (2.06 ms a token against 1.68)."""
    return round_up(rows) - rows if rows > 1 and dtype != torch.float32 else 0


def _repeat(tensor: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, tokens, dim = tensor.shape
    wide = tensor[:, :, None].expand(batch, heads, times, tokens, dim)
    return wide.reshape(batch, heads * times, tokens, dim)


def _more(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    return functional.pad(tensor, (0, 0, 0, rows)) if rows else tensor


AttentionInterface.register(_FUSED, fused_attention)
