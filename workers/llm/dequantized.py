"""A quantized folder's weights as floats: what a program of it is measured against, where nothing else is at hand."""

import copy
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from workers.llm.checkpoint import weight_files
from workers.llm.model_source import Model
from workers.llm.program import BadInput
from workers.llm.quantized_layout import KEY
from workers.llm.quantized_tensors import unpack_int4

ONE = torch.ones(1)
OF_THE_CACHE = ("k_scale", "v_scale")


def load_dequantized(model: Model) -> Any:
    """The model in float32, eager, inputs and cache not rounded. Raises BadInput when weights are missing."""
    assert model.folder is not None
    stored = {name: tensor for file in weight_files(model.folder) for name, tensor in load_file(file).items()}
    config = copy.deepcopy(model.config)
    delattr(config, KEY)
    loaded: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    missing, _ = loaded.load_state_dict(_floats(stored), strict=False)
    tied = set(getattr(loaded, "all_tied_weights_keys", None) or ())
    lacking = sorted(set(missing) - tied)
    if lacking:
        raise BadInput(f"the weights in {model.folder} lack {', '.join(lacking[:3])}")
    loaded.tie_weights()
    return loaded


def _floats(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight_scale":
            found[f"{module}.weight"] = _weight(stored, module)
        elif leaf == "bias" or not (leaf in OF_THE_CACHE or f"{module}.weight_scale" in stored):
            found[name] = tensor.float()
    return found


def _weight(stored: dict[str, torch.Tensor], module: str) -> torch.Tensor:
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
