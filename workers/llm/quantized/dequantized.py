"""Loading a quantized folder with its weights as floats: the reference of its program."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import KEY
from workers.llm.quantized.low_bit_values import unpack_int4
from workers.llm.weights.checkpoint import StoredTensor, read_checkpoint
from workers.llm.weights.stored_names import stored_as

ONE = torch.ones(1)

Stored = Mapping[str, StoredTensor]


def load_dequantized(model: LocalModel) -> Any:
    """Load the model in float32, eager, with unrounded inputs and cache. Raises BadInput when weights are missing.

    One parameter is read at a time, so that memory holds the model once.
    """
    assert model.folder is not None
    stored, config = read_checkpoint(model.folder), copy.deepcopy(model.config)
    delattr(config, KEY)
    loaded = _build(config)
    if _has_untied(loaded, stored):
        config.tie_word_embeddings = False  # transformers ties no weights that are stored with different values
        loaded = _build(config)
    tied, lacking = _ties(loaded), []
    for name, parameter in loaded.state_dict().items():
        value = _value(stored, name, tuple(parameter.shape))
        if value is not None:
            parameter.copy_(_expect_shape(model, name, value, parameter))
        elif name not in tied:
            lacking.append(name)
    if lacking:
        raise BadInput(f"the weights in {model.folder} lack {', '.join(sorted(lacking)[:3])}")
    loaded.tie_weights()
    return loaded


def read_tensor(tensor: StoredTensor) -> torch.Tensor:
    """Return a whole stored tensor."""
    chunks = [rows for _, rows in tensor.rows(max(tensor.stop - tensor.start, 1))]
    return torch.cat(chunks).reshape(tensor.shape)


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


def _has_untied(model: Any, stored: Stored) -> bool:
    pairs = [(stored[name], stored[owner]) for name, owner in _ties(model).items() if stored.keys() >= {name, owner}]
    return any(not torch.equal(read_tensor(tensor), read_tensor(owner)) for tensor, owner in pairs)


def _expect_shape(model: LocalModel, name: str, value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if value.shape != parameter.shape:
        shapes = f"{list(value.shape)}, the config calls for {list(parameter.shape)}"
        raise BadInput(f"the tensor {name} in {model.folder} has shape {shapes}")
    return value


def _value(stored: Stored, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return a parameter in float32; None where it is not stored."""
    module, _, leaf = name.rpartition(".")
    if leaf == "weight" and f"{module}.weight_scale" in stored:
        return _dequantize(stored, module)
    parts = next((group for group in stored_as(name, shape) if stored.keys() >= set(group)), None)
    if parts is None:
        return None
    if len(parts) == 1:
        return read_tensor(stored[parts[0]]).float()
    return torch.cat([read_tensor(stored[part]).float() for part in parts]).reshape(shape)


def _dequantize(stored: Stored, module: str) -> torch.Tensor:
    """Return the weight of a linear module, as applied to inputs before `pre_quant_scale`."""
    tensors = {
        leaf: read_tensor(stored[f"{module}.{leaf}"])
        for leaf in ("weight", "weight_packed", "weight_scale", "weight_zero_point", "pre_quant_scale")
        if f"{module}.{leaf}" in stored
    }
    scale, zeros = tensors["weight_scale"].float(), tensors.get("weight_zero_point")
    if "weight" in tensors:
        return tensors["weight"].float() * scale * tensors.get("pre_quant_scale", ONE)
    values = unpack_int4(tensors["weight_packed"]).float()
    rows, columns = values.shape
    groups = values.reshape(rows, scale.shape[1], -1)
    if zeros is not None:
        groups = groups - (zeros if zeros.is_floating_point() else unpack_int4(zeros.t()).t()).float()[..., None]
    return (groups * scale[..., None]).reshape(rows, columns)
