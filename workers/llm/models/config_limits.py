"""The limits of the numbers in a config.json, which are checked before any module is built from them.

They are far above those of known models, and low enough that a model without weights is built within seconds.
"""

from collections.abc import Mapping
from typing import Any

Limits = tuple[int, int]

_SIZE: Limits = (1, 1 << 20)
_POSITIONS: Limits = (1, 1 << 27)
_HEADS: Limits = (1, 1 << 12)
_TOKEN: Limits = (-1, 1 << 24)

#: The least and the most of a number, by its key. Llama 3.1 405B has 126 layers, a hidden size of 16,384, 128 heads.
LIMITS: dict[str, Limits] = {
    "hidden_size": _SIZE,
    "intermediate_size": (1, 1 << 22),
    "moe_intermediate_size": (1, 1 << 22),
    "head_dim": (1, 1 << 14),
    "vocab_size": (1, 1 << 24),
    "num_hidden_layers": (1, 256),
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "num_local_experts": _HEADS,
    "num_experts": _HEADS,
    "num_experts_per_tok": _HEADS,
    "max_position_embeddings": _POSITIONS,
    "original_max_position_embeddings": _POSITIONS,
    "sliding_window": _POSITIONS,
    "max_window_layers": (0, 1 << 12),
    "query_pre_attn_scalar": _SIZE,
    "num_labels": (0, 2000),
    "pad_token_id": _TOKEN,
    "bos_token_id": _TOKEN,
    "eos_token_id": _TOKEN,
}

#: Keys that name code: the model's own, or kernels of the hub. It is never run: transformers' own classes are used.
CODE_KEYS = (
    "auto_map",
    "custom_pipelines",
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "_experts_implementation",
)


#: Keys that say how transformers' classes are called and what they return, not what a model computes.
CALL_KEYS = ("return_dict", "output_attentions", "output_hidden_states", "use_cache")


def config_problem(values: Mapping[str, Any]) -> str | None:
    """Return why the numbers of a config can't be used; None if they can."""
    for key, limits in LIMITS.items():
        least, most = limits
        given = values.get(key)
        for value in (
            given if isinstance(given, list) and limits is _TOKEN else [given]
        ):  # several tokens may end a text
            if value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                return f"{key} should be a number, not {str(value)[:40]!r}"
            if not least <= value <= most:
                return f"{key} should be between {least} and {most}, not {str(value)[:40]}"
    return _relation_problem(values)


def _relation_problem(values: Mapping[str, Any]) -> str | None:
    """Return a contradiction between two numbers."""
    vocabulary, padding = values.get("vocab_size"), values.get("pad_token_id")
    if vocabulary is not None and isinstance(padding, int) and padding >= vocabulary:
        return f"pad_token_id is {padding}, but the model embeds only {vocabulary} tokens (vocab_size)"
    experts, per_token = values.get("num_local_experts"), values.get("num_experts_per_tok")
    if experts is not None and per_token is not None and per_token > experts:
        return f"num_experts_per_tok is {per_token}, but there are only {experts} (num_local_experts)"
    return None


def without_code(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the keys that name code, or say how code is called."""
    return {key: value for key, value in values.items() if key not in (*CODE_KEYS, *CALL_KEYS)}
