"""The implementation of experts that programs are exported with, registered with transformers.

transformers' own implementations sort tokens by expert, which IREE 3.13 does not lower, or gather a copy of an expert's
weights for each token. Here every expert computes every token, with a weight of zero for those not routed to it: shapes
are static, all products are large matrix products, and a rank can hold a part of each expert. Routing stays in the
layer, which spreads out its routing weights: a constant within a block, shared by all ranks, would have no affinity,
and IREE would copy the weights in each call.
"""

from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

IMPLEMENTATION = "haloctl_dense"


def is_experts(module: nn.Module) -> bool:
    """Return whether a module holds experts, and is called with tokens and the experts chosen for each."""
    return hasattr(module, "_is_expert_parallel")


def spread_routing_weights(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> Any:
    """Return the arguments of `dense_experts` for chosen experts and their weights `[tokens, chosen]`."""
    chosen = top_k_index[..., None] == torch.arange(module.num_experts)
    share = (chosen * top_k_weights[..., None]).sum(dim=1).to(hidden_states.dtype)
    return hidden_states, None, share


def dense_experts(module: Any, hidden_states: torch.Tensor, _: None, share: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of all experts `[tokens, hidden]`; the weights `share` are `[tokens, experts]`.

    The module holds gate_up_proj `[experts, 2 * intermediate, hidden]` and down_proj `[experts, hidden, intermediate]`.
    """
    repeated = hidden_states[None].expand(module.num_experts, *hidden_states.shape)
    inner = module._apply_gate(torch.bmm(repeated, module.gate_up_proj.transpose(1, 2)))
    outputs: torch.Tensor = torch.bmm(inner * share.t()[..., None], module.down_proj.transpose(1, 2))
    return outputs.sum(dim=0)


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, dense_experts)
