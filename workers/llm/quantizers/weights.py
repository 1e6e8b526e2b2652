"""Which of a model's tensors are quantized, and which are stored as they are."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workers.llm.model_source import TOKENIZER_FILES
from workers.llm.quantizers.request import Request
from workers.llm.reference import load_weights


def linear_modules(model: Any) -> dict[str, nn.Linear]:
    """By name, without the one that makes logits."""
    head = model.get_output_embeddings()
    return {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear) and one is not head}


def others_of(request: Request, model: Any, quantized: set[str]) -> dict[str, torch.Tensor]:
    """Tensors but the weights of the modules that are quantized, in the type that the original has them in."""
    dtype = getattr(request.model.config, "dtype", None) or torch.float32
    left_out = {f"{name}.weight" for name in quantized} | set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: tensor.to(dtype) for name, tensor in model.state_dict().items() if name not in left_out}


def save_model(request: Request, folder: Path) -> Any:
    """Write the model, overrides applied, with its tokenizer, for makers that read folders; returns it."""
    model = load_weights(request.model)
    model.save_pretrained(folder)
    assert request.model.folder is not None
    for name in TOKENIZER_FILES:
        if (request.model.folder / name).is_file():
            shutil.copy(request.model.folder / name, folder / name)
    return model
