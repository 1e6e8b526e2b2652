"""Which of a model's tensors are quantized, which are stored unchanged, and reading and writing them as folders."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from workers.llm.models.model_source import TOKENIZER_FILES, leave_out_code
from workers.llm.numerics.reference import load_weights
from workers.llm.quantizers.quantize_request import QuantizeRequest


def linear_modules(model: Any) -> dict[str, nn.Linear]:
    """Return the linear modules by name, without the one that computes logits."""
    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return {name: module for name, module in linear.items() if module is not head}


def stored_dtype(request: QuantizeRequest) -> torch.dtype:
    """Return the dtype that the original model's tensors are stored in."""
    return getattr(request.model.config, "dtype", None) or torch.float32


def unquantized_tensors(request: QuantizeRequest, model: Any, quantized: set[str]) -> dict[str, torch.Tensor]:
    """Return all tensors but the weights of the `quantized` modules and tied ones, in the original's dtype."""
    dtype = stored_dtype(request)
    left_out = {f"{name}.weight" for name in quantized} | set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: tensor.to(dtype) for name, tensor in model.state_dict().items() if name not in left_out}


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Read every tensor of the safetensors files in `folder`."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def save_model(request: QuantizeRequest, folder: Path) -> Any:
    """Write the model, overrides applied, with its tokenizer, for quantizers that read folders; return the model."""
    model = load_weights(request.model)
    model.save_pretrained(folder)
    assert request.model.folder is not None
    for name in TOKENIZER_FILES:
        if (request.model.folder / name).is_file():
            shutil.copy(request.model.folder / name, folder / name)
    leave_out_code(folder / "tokenizer_config.json")
    return model
