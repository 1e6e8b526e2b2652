"""Transformers models on fake tensors: every parameter has a shape and a dtype, and takes no memory."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from workers.llm.command_line import BadInput
from workers.llm.models import experts
from workers.llm.models.attention import attention_implementation, unsupported_reason
from workers.llm.models.positions import has_changing_factors
from workers.llm.sharding.plan import Sharding, plan_sharding
from workers.llm.sharding.split_problems import rank_problems
from workers.llm.sharding.split_styles import Shape
from workers.llm.weights.ties import tied_names

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def build_meta_model(config: Any, dtype: torch.dtype, attention: str, mode: FakeTensorMode) -> nn.Module:
    """Build the model inside `mode`; the buffers that its rotary embedding computes from the config are real, in f32.

    Raises BadInput when the model does not work with this attention kernel.
    """
    if reason := unsupported_reason(config, attention):
        raise BadInput(f"model.layers.*.self_attn: {reason}")
    kernel = attention_implementation(attention)
    try:
        with mode:
            model: nn.Module = AutoModelForCausalLM.from_config(
                config,
                dtype=dtype,
                attn_implementation=kernel,
                experts_implementation=experts.IMPLEMENTATION,
                trust_remote_code=False,
            )
        _compute_buffers(model, config, dtype)
    except Exception as problem:  # modules raise errors of many types where numbers of the config don't fit
        reason = f"{type(problem).__name__}: {problem}"
        raise BadInput(f"transformers cannot build this {config.model_type} with {attention}: {reason}") from None
    return model.eval()


def _compute_buffers(model: nn.Module, config: Any, dtype: torch.dtype) -> None:
    """Replace the buffers that modules compute from the config by real ones."""
    for name, module in list(model.named_modules()):
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=dtype)
        elif module._non_persistent_buffers_set:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, _with_one_set_of_factors(type(module)(config=config)))


def _with_one_set_of_factors(module: Any) -> Any:
    """Let a rotary embedding keep the factors of short texts (`workers.llm.models.positions`)."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, dict):
        module.rope_type = {name: "default" if has_changing_factors(kind) else kind for name, kind in kinds.items()}
    elif isinstance(kinds, str) and has_changing_factors(kinds):
        module.rope_type = "default"
    return module


def parameter_shapes(model: nn.Module) -> dict[str, Shape]:
    """Return the whole shape of every parameter by full name; tied ones under each of their names."""
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def shard(model: nn.Module, tp: int) -> Sharding:
    """Plan the split of `model` over `tp` ranks."""
    plan: dict[str, str] = model.tp_plan or {}  # type: ignore[assignment]
    whole = _tied_to_whole(model, plan) if tp > 1 else {}
    plan = {pattern: style for pattern, style in plan.items() if pattern not in whole}
    sharding = plan_sharding(model.config, plan, parameter_shapes(model), tp)
    warnings = (
        f"{name} stays whole: it is tied to {owner}, which the plan does not split" for name, owner in whole.items()
    )
    return replace(sharding, warnings=(*sharding.warnings, *warnings))


def _tied_to_whole(model: nn.Module, plan: dict[str, str]) -> dict[str, str]:
    """Return the modules that the plan splits although they are tied to one that it leaves whole, with that one."""
    pairs = ((name.rpartition(".")[0], owner.rpartition(".")[0]) for name, owner in tied_names(model).items())
    return {name: owner for name, owner in pairs if name in plan and owner not in plan}


def shard_by_torch(model: Any, tp: int) -> Sharding:
    """Return what prevents transformers from splitting the model over `tp` ranks; it plans the split itself."""
    return Sharding(tp, {}, {}, tuple(rank_problems(model.config.get_text_config(), bool(model.tp_plan), tp)))
