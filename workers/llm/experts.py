"""Experts, as a program is exported with them: registered with transformers, which has a choice of forms.

Its own forms sort tokens by expert or gather a copy of an expert's weights for each token; IREE 3.13 lowers the first
not at all. Here every expert computes every token, and what it was not chosen for counts nothing: shapes are static,
all products are large matrix products, and a rank can hold a part of each expert. Routing stays with the layer, which
spreads out what it chose: a constant within a block, which all ranks share, would leave IREE in doubt about their
place, and it would copy their weights in each call.
"""

from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

IMPLEMENTATION = "haloctl_dense"


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds experts, and is called with tokens and what was chosen for each."""
    return hasattr(module, "_is_expert_parallel")


def shares(module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
    """The arguments of `dense_experts`, for choices and weights `[tokens, chosen]`."""
    chosen = top_k_index[..., None] == torch.arange(module.num_experts)
    share = (chosen * top_k_weights[..., None]).sum(dim=1).to(hidden_states.dtype)
    return hidden_states, None, share


def dense_experts(module: Any, hidden_states: torch.Tensor, _: None, share: torch.Tensor) -> torch.Tensor:
    """The weighted sum of all experts, `[tokens, hidden]`; `share` is `[tokens, experts]`.

    The module holds gate_up_proj `[experts, 2 * intermediate, hidden]` and down_proj `[experts, hidden, intermediate]`.
    """
    everywhere = hidden_states[None].expand(module.num_experts, *hidden_states.shape)
    inner = module._apply_gate(torch.bmm(everywhere, module.gate_up_proj.transpose(1, 2)))
    outputs: torch.Tensor = torch.bmm(inner * share.t()[..., None], module.down_proj.transpose(1, 2))
    return outputs.sum(dim=0)


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, dense_experts)
