"""How many heads attention has, and their size, by its projections: a config may say what no module uses. Pure."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from workers.llm.sharding.split_styles import Shape, kv_heads_of

OUTPUT = ("o_proj", "dense")
KEYS, PACKED_QKV = ("k_proj",), ("qkv_proj", "query_key_value")


def with_head_counts(config: Any, parameters: Mapping[str, Shape]) -> tuple[Any, int]:
    """Return the config with the number of key/value heads that the projections have, and the size of a head."""
    heads: int = config.num_attention_heads
    widths = [columns for _, columns in _shapes(OUTPUT, parameters)]
    dim: int = widths[0] // heads if widths else getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = kv_heads_of(config)
    for rows, _ in _shapes(KEYS, parameters):
        kv_heads = rows // dim
    for rows, _ in _shapes(PACKED_QKV, parameters):
        kv_heads = (rows // dim - heads) // 2
    counted = copy.copy(config)
    counted.num_key_value_heads = kv_heads
    return counted, dim


def _shapes(modules: tuple[str, ...], parameters: Mapping[str, Shape]) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of the weights of these modules; a byte holds two int4 values."""
    for name, shape in parameters.items():
        module, _, leaf = name.rpartition(".")
        if leaf in ("weight", "weight_packed") and len(shape) == 2 and module.rpartition(".")[2] in modules:
            yield shape[0], shape[1] * (2 if leaf == "weight_packed" else 1)
