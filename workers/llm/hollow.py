"""A transformers model without weights: every parameter has shape and dtype and takes no memory."""

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from workers.llm import experts
from workers.llm.attention import implementation, why_unsuited
from workers.llm.program import BadInput
from workers.llm.sharding import Sharding, plan_sharding
from workers.llm.split_problems import rank_problems
from workers.llm.split_styles import Shape

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def hollow_model(config: Any, dtype: torch.dtype, attention: str, mode: FakeTensorMode) -> nn.Module:
    """Build the model inside `mode`. What the rotary embedding computes from the config is real, and stays in f32."""
    if reason := why_unsuited(config, attention):
        raise BadInput(f"model.layers.*.self_attn: {reason}")
    kernel = implementation(attention)
    try:
        with mode:
            model: nn.Module = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=kernel, experts_implementation=experts.IMPLEMENTATION
            )
    except ValueError as problem:
        raise BadInput(f"transformers cannot build this {config.model_type} with {attention}: {problem}") from None
    for name, module in list(model.named_modules()):
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=dtype)
        elif module._non_persistent_buffers_set:
            _rebuild(model, name, type(module), config)
    return model.eval()


def _rebuild(model: nn.Module, name: str, kind: type[nn.Module], config: Any) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, kind(config=config))


def parameter_shapes(model: nn.Module) -> dict[str, Shape]:
    """Full name and whole shape of every parameter; tied ones under each of their names."""
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def tied_names(model: nn.Module) -> dict[str, str]:
    """Names that stand for another parameter: `lm_head.weight` -> `model.embed_tokens.weight`."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            tied[name] = owner
    return tied


def shard(model: nn.Module, tp: int) -> Sharding:
    """The rules by which `model` is split over `tp` ranks."""
    plan: dict[str, str] = model.tp_plan or {}  # type: ignore[assignment]
    return plan_sharding(model.config, plan, parameter_shapes(model), tp)


def shard_by_torch(model: Any, tp: int) -> Sharding:
    """What stands in the way of `tp` ranks of transformers' own; how it splits the model is its business."""
    return Sharding(tp, {}, {}, tuple(rank_problems(model.config.get_text_config(), bool(model.tp_plan), tp)))
