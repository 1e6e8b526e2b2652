"""A small config that means what a large one means: narrow, and with a few layers of each kind. Pure."""

import copy
from collections.abc import Hashable, Sequence
from typing import Any

#: the most of a number that only says how wide a model is, or how far a token sees
LARGEST = {
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "vocab_size": 256,
    "sliding_window": 5,
    "attention_chunk_size": 5,
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
LAYERS_OF_A_KIND = 2


def choose_layers(kinds: Sequence[Hashable]) -> list[int]:
    """Return the first layers of each kind."""
    chosen = [index for index, kind in enumerate(kinds) if kinds[:index].count(kind) < LAYERS_OF_A_KIND]
    return chosen or list(range(len(kinds)))


def small_config(config: Any, layers: int) -> Any:
    """Return a narrow copy of `config` with its first `layers`.

    The size of a head stays: rotary embeddings follow from it.
    """
    small = copy.deepcopy(config)
    _narrow_heads(small)
    for key, most in LARGEST.items():
        value = getattr(small, key, None)
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(small, key, min(value, most))
    for key in EXPERTS:
        if isinstance(getattr(small, key, None), int):
            setattr(small, key, min(getattr(small, key), 2 * (getattr(small, "num_experts_per_tok", None) or 2)))
    padding = getattr(small, "pad_token_id", None)
    if padding is not None and padding >= small.vocab_size:
        small.pad_token_id = None
    return with_layers(small, range(layers))


def with_layers(config: Any, layers: Sequence[int]) -> Any:
    """Return a copy of `config` for these of its layers alone."""
    chosen = copy.deepcopy(config)
    count = config.num_hidden_layers
    for key, value in vars(config).items():
        if isinstance(value, list) and len(value) == count and key != "architectures":
            setattr(chosen, key, [value[layer] for layer in layers])
    chosen.num_hidden_layers = len(layers)
    return chosen


def _narrow_heads(config: Any) -> None:
    heads: int = config.num_attention_heads
    stated: int | None = getattr(config, "num_key_value_heads", None)
    kv_heads = min(stated or heads, 2)
    small = kv_heads * min(heads // stated, 2) if stated and stated < heads else kv_heads
    config.hidden_size = small * (config.hidden_size // heads)
    config.num_attention_heads = small
    if stated is not None:
        config.num_key_value_heads = kv_heads
