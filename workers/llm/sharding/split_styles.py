"""Tables: the styles of transformers' plan, how each splits a parameter, and how heads are counted. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FAMILIES = (
    "gemma2",
    "gpt_neox",
    "granite",
    "llama",
    "ministral",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
)

#: popular families that can't be exported: the module that prevents it, and the reason
UNSUITED = {
    "falcon": (
        "transformer.h.*.self_attention",
        "it has attention classes of its own, not transformers' attention interface, through which programs get their "
        "kernels, and transformers ships no tensor-parallel plan for it",
    )
}

#: modules of attention, and the config key that counts the heads along their split dimension
HEADS = {
    "q_proj": "num_attention_heads",
    "k_proj": "num_key_value_heads",
    "v_proj": "num_key_value_heads",
    "o_proj": "num_attention_heads",
    "q_norm": "num_attention_heads",
    "k_norm": "num_key_value_heads",
    "qkv_proj": "num_attention_heads",
    "query_key_value": "num_attention_heads",
    "dense": "num_attention_heads",
}
#: modules that transformers gathers within a layer, and the style that splits their rows here instead
INSIDE = {
    "q_proj": "colwise",
    "k_proj": "colwise",
    "v_proj": "colwise",
    "qkv_proj": "packed_qkv",
    "gate_up_proj": "packed_colwise",
}
#: norms of attention, and the projection whose whole width they may span
NORMS = {"q_norm": "q_proj", "k_norm": "k_proj"}
GROUPED = ("_scale", "_zero_point")  #: suffixes of the parameters that a quantized weight has for each group of columns
REPLICATED_STYLES = ("replicate", "replicated_with_grad_allreduce")
PACKED = re.compile(r"qkv|gate_up|query_key_value|c_attn|Wqkv")

Shape = tuple[int, ...]


class SplitRule(StrEnum):
    """Which part of a parameter a rank holds."""

    HOME = "home"  #: whole on rank 0, nothing elsewhere
    REPLICATED = "replicated"  #: whole on every rank
    ROWS = "rows"  #: an equal part along dimension 0
    COLUMNS = "columns"  #: an equal part along the last dimension
    KV_ROWS = "kv_rows"  #: along dimension 0 the rank's one key/value head, which other ranks hold too
    HALF_ROWS = "half_rows"  #: an equal part of each half of the rows, in each expert where there are several
    QKV_ROWS = "qkv_rows"  #: an equal part of the queries' rows, and the key's and value's rows that go with it
    ONCE = "once"  #: whole on rank 0, zeros elsewhere: a bias that is added after a sum


class Join(StrEnum):
    """The operation that combines the ranks' outputs of a block."""

    SUM = "sum"
    CONCAT = "concat"  #: along the last dimension


#: how each supported style of the plan splits a matrix and a bias
STYLES = {
    "colwise": (SplitRule.ROWS, SplitRule.ROWS),
    "rowwise": (SplitRule.COLUMNS, SplitRule.ONCE),
    "colwise_gather_output": (SplitRule.ROWS, SplitRule.ROWS),
    "embedding_rowwise": (SplitRule.ROWS, SplitRule.ROWS),
    "packed_colwise": (SplitRule.HALF_ROWS, SplitRule.HALF_ROWS),
    "packed_qkv": (SplitRule.QKV_ROWS, SplitRule.QKV_ROWS),
    "norm_over_ranks": (SplitRule.ROWS, SplitRule.ROWS),
    **dict.fromkeys(REPLICATED_STYLES, (SplitRule.REPLICATED, SplitRule.REPLICATED)),
}
#: blocks that are one module, by the style that makes them so
SINGLE_MODULE_BLOCKS = {"colwise_gather_output": Join.CONCAT, "embedding_rowwise": Join.SUM}


@dataclass(frozen=True)
class SplitProblem:
    """A reason that prevents splitting a model over `tp` ranks."""

    tp: int
    module: str
    reason: str


def style_of(module: str, plan: Mapping[str, str]) -> str | None:
    """Return the plan's style for a module's full name; layer numbers match `*`."""
    return plan.get(module) or plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", module))


def block_of(name: str, blocks: Mapping[str, Join]) -> str | None:
    """Return the block that contains a parameter, if one does."""
    module = name.rpartition(".")[0]
    return next((block for block in (module, module.rpartition(".")[0]) if block in blocks), None)


def kv_heads_of(config: Any) -> int:
    """Return the number of key/value heads, which a config without grouped queries does not state."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def is_scale(name: str) -> bool:
    """Return whether a parameter is a scale of quantized weights, inputs, keys or values."""
    return name.endswith("_scale")
