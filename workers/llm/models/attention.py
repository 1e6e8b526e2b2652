"""The attention kernels that a program can be exported with, and their masks.

`eager` is the family's own: matmul, softmax, matmul. `sdpa` is one fused operation, prepared here for matrix units:
transformers' version repeats keys and values for grouped queries, and keeps sizes that matrix units cannot use.

Which keys a layer sees is the family's decision: its code asks transformers for a mask, by kernel, and gets it from the
functions that are registered here.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from jobs.contexts import TILE

KERNELS = ("sdpa", "eager")
#: the value of a masked score: far below any score, and finite in the dtype even times log2(e)
MASKED = {torch.float32: -1e30, torch.bfloat16: -1e30, torch.float16: -3e4}

#: names under which transformers knows the kernels. Without `sdpa` in one: gemma2 refuses any such name, since its
#: scores may be capped (transformers 5.23).
_IMPLEMENTATIONS = {"sdpa": "haloctl_fused", "eager": "haloctl_eager"}


def attention_implementation(kernel: str) -> str:
    """Return transformers' name of a kernel."""
    return _IMPLEMENTATIONS[kernel]


def unsupported_reason(config: Any, kernel: str) -> str | None:
    """Return why a kernel can't compute a model's attention, or None."""
    if kernel == "sdpa" and getattr(config, "attn_logit_softcapping", None):
        return "it caps its scores (attn_logit_softcapping), which attention sdpa cannot do: use attention: eager"
    return None


def round_up(size: int, tile: int = TILE) -> int:
    """Return the next multiple of a tile."""
    return -(-size // tile) * tile


MaskFunction = Callable[[torch.Tensor, int, torch.Tensor, torch.Tensor], torch.Tensor]


def additive_mask(
    batch_size: int, q_offset: torch.Tensor, kv_length: int, mask_function: MaskFunction, dtype: torch.dtype, **_: Any
) -> torch.Tensor:
    """Return the mask `[1 or batch, 1, tokens, keys]` that `mask_function` decides: zero where a token sees a key.

    `q_offset` holds the positions `[1 or batch, tokens]` of the tokens (`SlotCache.get_query_offset`).
    """
    rows = torch.arange(batch_size)[:, None, None, None]
    visible = mask_function(rows, 0, q_offset[:, None, :, None], torch.arange(kv_length)[None, None, None])
    return torch.where(visible, 0.0, MASKED[dtype]).to(dtype)


def tiled_mask(kv_length: int, **arguments: Any) -> torch.Tensor:
    """Return the mask for `fused_attention`, which pads keys to whole tiles: none of these is visible to a token."""
    return additive_mask(kv_length=round_up(kv_length), **arguments)


def eager_attention(module: nn.Module, *arguments: Any, **options: Any) -> Any:
    """Attention as the module's family computes it when asked for `eager`."""
    return sys.modules[type(module).__module__].eager_attention_forward(module, *arguments, **options)


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
    are repeated. Rows that pad a tile are cut off again; keys that pad one are masked (`tiled_mask`).
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


for _kernel, _attention, _mask in (("sdpa", fused_attention, tiled_mask), ("eager", eager_attention, additive_mask)):
    AttentionInterface.register(attention_implementation(_kernel), _attention)
    AttentionMaskInterface.register(attention_implementation(_kernel), _mask)
