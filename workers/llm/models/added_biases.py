"""Biases that a quantizer has added to the linear modules of a model without any, as its config states."""

import copy
import json
from dataclasses import replace
from pathlib import Path

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel

BIASES = ("attention_bias", "mlp_bias")  #: keys of a llama's config


def with_biases(model: LocalModel) -> LocalModel:
    """Return the model with a bias in every linear module of its layers; a family without biases is a BadInput."""
    config = copy.deepcopy(model.config)
    for key in BIASES:
        if not hasattr(config, key):
            raise BadInput(f"biases were added to linear modules, which a {config.model_type} has no place for")
        setattr(config, key, True)
    return replace(model, config=config)


def with_added_biases(model: LocalModel, quantized: Path | None) -> LocalModel:
    """Return the model with biases where the config of its quantized folder has them and its own has not."""
    try:
        config = json.loads((quantized / "config.json").read_text()) if quantized else {}
    except (OSError, ValueError) as problem:
        raise BadInput(f"{quantized}/config.json cannot be read: {problem}") from None
    added = any(config.get(key) and getattr(model.config, key, True) is False for key in BIASES)
    return with_biases(model) if added else model
