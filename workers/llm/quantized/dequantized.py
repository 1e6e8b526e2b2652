"""Loading a quantized folder with its weights as floats: the reference of its program where there is no original."""

import copy
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import KEY
from workers.llm.quantized.low_bit_values import unpack_int4
from workers.llm.weights.checkpoint import weight_files

ONE = torch.ones(1)
KV_SCALES = ("k_scale", "v_scale")


def load_dequantized(model: LocalModel) -> Any:
    """Load the model in float32, eager, with unrounded inputs and cache. Raises BadInput when weights are missing."""
    assert model.folder is not None
    stored = {name: tensor for file in weight_files(model.folder) for name, tensor in load_file(file).items()}
    config, tensors = copy.deepcopy(model.config), _dequantize(stored)
    delattr(config, KEY)
    loaded = _build(config)
    if any(not torch.equal(tensors[a], tensors[b]) for a, b in _ties(loaded).items() if tensors.keys() >= {a, b}):
        config.tie_word_embeddings = False  # transformers ties no weights that are stored with different values
        loaded = _build(config)
    missing, _ = loaded.load_state_dict(tensors, strict=False)
    tied = set(_ties(loaded))
    lacking = sorted(set(missing) - tied)
    if lacking:
        raise BadInput(f"the weights in {model.folder} lack {', '.join(lacking[:3])}")
    loaded.tie_weights()
    return loaded


def _build(config: Any) -> Any:
    return AutoModelForCausalLM.from_config(
        config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        trust_remote_code=False,
    )


def _ties(model: Any) -> dict[str, str]:
    return getattr(model, "all_tied_weights_keys", None) or {}


def _dequantize(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight_scale":
            tensors[f"{module}.weight"] = _dequantize_weight(stored, module)
        elif leaf == "bias" or not (leaf in KV_SCALES or f"{module}.weight_scale" in stored):
            tensors[name] = tensor.float()
    return tensors


def _dequantize_weight(stored: dict[str, torch.Tensor], module: str) -> torch.Tensor:
    scale = stored[f"{module}.weight_scale"].float()
    if f"{module}.weight" in stored:
        return stored[f"{module}.weight"].float() * scale * stored.get(f"{module}.pre_quant_scale", ONE)
    values = unpack_int4(stored[f"{module}.weight_packed"]).float()
    rows, columns = values.shape
    groups = values.reshape(rows, scale.shape[1], -1)
    zeros = stored.get(f"{module}.weight_zero_point")
    if zeros is not None:
        groups = groups - (zeros if zeros.is_floating_point() else unpack_int4(zeros.t()).t()).float()[..., None]
    return (groups * scale[..., None]).reshape(rows, columns)
