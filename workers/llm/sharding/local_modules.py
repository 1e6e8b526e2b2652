"""The modules of a block as one rank runs them: with its own heads, and norms over features on all ranks."""

import copy
from typing import Any

import torch
from torch import nn

from workers.llm.sharding.plan import Sharding


class NormOverRanks(nn.Module):
    """An RMS norm over features that are split evenly over the ranks."""

    def __init__(self, whole: Any, tp: int) -> None:
        super().__init__()
        self.weight: torch.Tensor = whole.weight
        self.eps: float = whole.variance_epsilon
        self.tp = tp

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the normalized features of this rank."""
        wide = hidden_states.float()
        squares: torch.Tensor = torch.ops.haloctl.sum_over_ranks(wide.square().sum(-1, keepdim=True))
        mean = squares / (wide.shape[-1] * self.tp)
        return (self.weight * (wide * torch.rsqrt(mean + self.eps))).to(hidden_states.dtype)


def is_attention(module: nn.Module) -> bool:
    """Return whether a module is attention: it uses the cache, and returns its weights beside its output."""
    return hasattr(module, "is_causal")


def localize(model: nn.Module, block: str, sharding: Sharding) -> None:
    """Change a block of `model` into one rank's part; its parameters stay whole."""
    if sharding.tp == 1:
        return
    module = model.get_submodule(block)
    if is_attention(module):
        _localize_heads(module, sharding)
    for norm in sharding.norms:
        if norm.startswith(f"{block}."):
            model.set_submodule(norm, NormOverRanks(model.get_submodule(norm), sharding.tp))


def _localize_heads(attention: Any, sharding: Sharding) -> None:
    """Set the numbers of heads on one rank; repeated key/value heads change the query heads for each of them."""
    config = copy.copy(attention.config)
    heads, kv_heads = sharding.heads // sharding.tp, max(sharding.kv_heads // sharding.tp, 1)
    counts = {"num_attention_heads": heads, "num_heads": heads, "num_key_value_heads": kv_heads}
    counts["num_key_value_groups"] = heads // kv_heads
    for name, count in counts.items():
        for owner in (config, attention):
            if hasattr(owner, name):
                setattr(owner, name, count)
    attention.config = config
