"""How many positions a program of a model can have. Pure.

Some rotary embeddings have other factors for a long text than for a short one, and transformers chooses them in each
call. A program has one set: those of texts up to the original length.
"""

from collections.abc import Iterator
from typing import Any

#: the key of the longest text with the first set of factors, by the type of rotary embedding
ORIGINAL_LENGTH = {"dynamic": "max_position_embeddings", "longrope": "original_max_position_embeddings"}


def position_problem(config: Any, cache_length: int, *, is_exported: bool = True) -> str | None:
    """Return why a prompt and new tokens of this length can't be run, or None; torch's engines export nothing."""
    needed = f"prompt and new tokens need {cache_length} positions"
    for kind, key, original in _original_lengths(config) if is_exported else ():
        if cache_length > original:
            return (
                f"{needed}; a program can have the {original} in which rope type {kind} is one set of factors ({key})"
            )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and cache_length > limit:
        return f"{needed}, the model has {limit} (max_position_embeddings)"
    return None


def has_changing_factors(rope_type: str) -> bool:
    """Return whether a type of rotary embedding has other factors for long texts."""
    return rope_type in ORIGINAL_LENGTH


def _original_lengths(config: Any) -> Iterator[tuple[str, str, int]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    for rope in by_layer_type or [parameters]:
        kind = rope.get("rope_type", "default")
        if has_changing_factors(kind):
            key = ORIGINAL_LENGTH[kind]
            length = rope.get(key) or getattr(config, key, None)
            if length is not None:
                yield kind, key, int(length)
