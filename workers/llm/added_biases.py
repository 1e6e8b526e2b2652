"""Biases that a quantizer has given to linear modules of a model that has none, as its config tells of them."""

import copy
import json
from dataclasses import replace
from pathlib import Path

from workers.llm.model_source import Model
from workers.llm.program import BadInput

BIASES = ("attention_bias", "mlp_bias")  #: keys of a llama's config


def with_biases(model: Model) -> Model:
    """The model with a bias in every linear module of its layers; raises BadInput where its family can't have them."""
    config = copy.deepcopy(model.config)
    for key in BIASES:
        if not hasattr(config, key):
            raise BadInput(f"biases were added to linear modules, which a {config.model_type} has no place for")
        setattr(config, key, True)
    return replace(model, config=config)


def with_added_biases(model: Model, quantized: Path | None) -> Model:
    """The model as its quantized folder has it: with biases where its config says so and the model's doesn't."""
    try:
        said = json.loads((quantized / "config.json").read_text()) if quantized else {}
    except (OSError, ValueError) as problem:
        raise BadInput(f"{quantized}/config.json cannot be read: {problem}") from None
    added = any(said.get(key) and getattr(model.config, key, True) is False for key in BIASES)
    return with_biases(model) if added else model
