"""How a model is split over `tp` ranks: transformers' own plan, turned into a rule for each parameter. Pure.

The plan (`model.tp_plan`) names a style for modules: colwise splits the rows of the weight, rowwise its columns, and
so on. Modules that own split children, or are split themselves, are blocks: each rank runs its part of a block, and
the parts are joined on rank 0, where all the rest of the model lives.

Key and value heads that are fewer than the ranks are repeated: rank r holds kv head r * kv_heads // tp.

Where transformers' plan gathers within a layer, as for packed projections, haloctl has styles of its own (INSIDE): a
rank takes its rows of each part that is packed, and a norm over the whole width sums up over the ranks.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FAMILIES = (
    "gemma2",
    "gpt_neox",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
)

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
#: what transformers gathers within a layer, and how its rows are split here instead
INSIDE = {
    "q_proj": "colwise",
    "k_proj": "colwise",
    "v_proj": "colwise",
    "qkv_proj": "packed_qkv",
    "gate_up_proj": "packed_colwise",
}
#: norms of attention, and the projection whose whole width they may span
NORMS = {"q_norm": "q_proj", "k_norm": "k_proj"}
GROUPED = ("_scale", "_zero_point")  #: end the names of what a quantized weight has for each group of columns
REPLICATED_STYLES = ("replicate", "replicated_with_grad_allreduce")
PACKED = re.compile(r"qkv|gate_up|query_key_value|c_attn|Wqkv")

Shape = tuple[int, ...]


class Rule(StrEnum):
    """What a rank holds of a parameter."""

    HOME = "home"  #: whole on rank 0, nothing elsewhere
    REPLICATED = "replicated"  #: whole on every rank
    ROWS = "rows"  #: an equal part along dimension 0
    COLUMNS = "columns"  #: an equal part along the last dimension
    KV_ROWS = "kv_rows"  #: along dimension 0 the rank's one key/value head, which other ranks hold too
    HALF_ROWS = "half_rows"  #: an equal part of each half of the rows, in each expert where there are several
    QKV_ROWS = "qkv_rows"  #: an equal part of the queries' rows, and the key's and value's rows that go with it
    ONCE = "once"  #: whole on rank 0, zeros elsewhere: a bias that is added after a sum


class Join(StrEnum):
    """How the ranks' outputs of a block become one."""

    SUM = "sum"
    CONCAT = "concat"  #: along the last dimension


#: how each style of the plan splits a matrix and a bias; a style that is not here is not supported
STYLES = {
    "colwise": (Rule.ROWS, Rule.ROWS),
    "rowwise": (Rule.COLUMNS, Rule.ONCE),
    "colwise_gather_output": (Rule.ROWS, Rule.ROWS),
    "embedding_rowwise": (Rule.ROWS, Rule.ROWS),
    "packed_colwise": (Rule.HALF_ROWS, Rule.HALF_ROWS),
    "packed_qkv": (Rule.QKV_ROWS, Rule.QKV_ROWS),
    "norm_over_ranks": (Rule.ROWS, Rule.ROWS),
    **dict.fromkeys(REPLICATED_STYLES, (Rule.REPLICATED, Rule.REPLICATED)),
}
#: blocks that are one module, by the style that makes them so
SINGLE_MODULE_BLOCKS = {"colwise_gather_output": Join.CONCAT, "embedding_rowwise": Join.SUM}


@dataclass(frozen=True)
class Problem:
    """Why a model cannot be split over `tp` ranks."""

    tp: int
    module: str
    reason: str


@dataclass(frozen=True)
class Sharding:
    """Every parameter's rule and every block's join, for one `tp`; `norms` are modules that sum up over the ranks."""

    tp: int
    rules: Mapping[str, Rule]
    blocks: Mapping[str, Join]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    heads: int = 0
    kv_heads: int = 0


def style_of(module: str, plan: Mapping[str, str]) -> str | None:
    """The plan's style for a module's full name; layer numbers match `*`."""
    return plan.get(module) or plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", module))


def plan_sharding(config: Any, plan: Mapping[str, str], parameters: Mapping[str, Shape], tp: int) -> Sharding:
    """Give each of `parameters` (full name -> whole shape) its rule, and say what stands in the way."""
    whole, warnings = _left_whole(plan, parameters, tp)
    plan = {pattern: style for pattern, style in _own(plan).items() if pattern not in whole}
    styles = {name: _style(name, plan, parameters) for name in parameters}
    blocks = dict(_blocks(styles, plan))
    rules = {name: _rule(config, name, shape, styles[name], blocks, tp) for name, shape in parameters.items()}
    problems = {
        *_model_problems(config, plan, tp),
        *(found for name in parameters if (found := _problem(config, name, parameters, rules, styles, blocks, tp))),
    }
    norms = tuple(name.rpartition(".")[0] for name, style in styles.items() if style == "norm_over_ranks")
    in_order = tuple(sorted(problems, key=_by_weight))
    heads = config.num_attention_heads
    return Sharding(tp, rules, blocks, in_order, tuple(warnings), norms, heads, kv_heads_of(config))


def kv_heads_of(config: Any) -> int:
    """Key and value heads; a config without grouped queries does not name them."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _own(plan: Mapping[str, str]) -> dict[str, str]:
    """The plan with haloctl's styles where transformers gathers within a layer."""
    own = {}
    for pattern, style in plan.items():
        if "layers." in pattern and style == "colwise_gather_output":
            style = INSIDE.get(pattern.rpartition(".")[2], style)
        if style != "moe_tp_experts":  # says how the experts' parts are joined: as all parts are
            own[pattern] = "rowwise" if style == "rowwise_split_input" else style
    return own


def _style(name: str, plan: Mapping[str, str], parameters: Mapping[str, Shape]) -> str | None:
    """The style of a parameter: its own, as experts have it, or its module's."""
    module = name.rpartition(".")[0]
    style = style_of(name, plan) or style_of(module, plan)
    block, _, leaf = module.rpartition(".")
    spanned = parameters.get(f"{block}.{NORMS[leaf]}.weight") if leaf in NORMS else None
    is_over_ranks = style is None and spanned is not None and parameters[name] == spanned[:1]
    return "norm_over_ranks" if is_over_ranks else style


def _by_weight(problem: Problem) -> tuple[bool, bool, str]:
    """What tells most comes first: packed projections, then other modules, then the model as a whole."""
    return not PACKED.search(problem.module), problem.module == "model", problem.module


def _left_whole(plan: Mapping[str, str], parameters: Mapping[str, Shape], tp: int) -> tuple[set[str], list[str]]:
    """Vocabulary modules whose rows do not divide stay whole on rank 0: that is always right, only less even."""
    whole, warnings = set(), []
    for module, style in plan.items():
        rows = parameters.get(f"{module}.weight", (0,))[0]
        if style in SINGLE_MODULE_BLOCKS and rows % tp:
            whole.add(module)
            warnings.append(f"{module} stays whole on device 0 at tp {tp}: its {rows} rows are not divisible by {tp}")
    return whole, warnings


def _blocks(styles: Mapping[str, str | None], plan: Mapping[str, str]) -> Iterator[tuple[str, Join]]:
    for name, style in styles.items():
        module = name.rpartition(".")[0]
        if style in SINGLE_MODULE_BLOCKS:
            yield module, SINGLE_MODULE_BLOCKS[style]
        elif style is not None and style != "norm_over_ranks":
            yield (module if style_of(name, plan) else module.rpartition(".")[0]), Join.SUM


def block_of(name: str, blocks: Mapping[str, Join]) -> str | None:
    """The block that owns a parameter, if any does."""
    module = name.rpartition(".")[0]
    return next((at for at in (module, module.rpartition(".")[0]) if at in blocks), None)


def _rule(config: Any, name: str, shape: Shape, style: str | None, blocks: Mapping[str, Join], tp: int) -> Rule:
    if style is None or style not in STYLES:
        return Rule.REPLICATED if block_of(name, blocks) else Rule.HOME
    rule = STYLES[style][0 if len(shape) > 1 else 1]
    if is_scale(name) and shape[-1] == 1 and (len(shape) == 1 or rule is Rule.COLUMNS):
        return Rule.REPLICATED  # of a whole tensor, or of rows that every rank has a part of
    key = HEADS.get(name.split(".")[-2])
    if rule is Rule.ROWS and key == "num_key_value_heads" and kv_heads_of(config) < tp:
        return Rule.KV_ROWS
    return rule


def is_scale(name: str) -> bool:
    """Whether a parameter is a scale of quantized weights, inputs, keys or values."""
    return name.endswith("_scale")


def _model_problems(config: Any, plan: Mapping[str, str], tp: int) -> Iterator[Problem]:
    if config.model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        yield Problem(tp, "model", f"the family {config.model_type} is not supported; these are: {known}")
    if not any("layers" in pattern for pattern in plan) and tp > 1:
        yield Problem(
            tp, "model", f"transformers ships no tensor-parallel plan for {config.model_type}: only tp 1 works"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        yield Problem(tp, "model.rotary_emb", f"rope type {rope} changes with the sequence: it cannot be exported")


def _problem(
    config: Any,
    name: str,
    parameters: Mapping[str, Shape],
    rules: Mapping[str, Rule],
    styles: Mapping[str, str | None],
    blocks: Mapping[str, Join],
    tp: int,
) -> Problem | None:
    module = name.rpartition(".")[0]
    style, shown = styles[name], re.sub(r"\.\d+\.", ".*.", module)
    in_layer = shown != module
    if tp == 1:
        return None
    if style is not None and (style not in STYLES or (in_layer and style in SINGLE_MODULE_BLOCKS)):
        why = "a packed projection" if PACKED.search(module) else "a split that is not supported"
        return Problem(tp, shown, f"the plan's style {style} is {why}: the ranks' parts do not come apart by rows")
    if style is None and block_of(name, blocks) and not is_scale(name):
        return Problem(tp, shown, "the plan splits its neighbours but says nothing of this module")
    leaf = module.rpartition(".")[2]
    if rules[name] is Rule.COLUMNS and name.endswith(GROUPED):
        leaf = "groups"
    reason = _indivisible(config, leaf, parameters[name], rules[name], tp)
    return Problem(tp, shown, reason) if reason else None


def _indivisible(config: Any, leaf: str, shape: Shape, rule: Rule, tp: int) -> str | None:
    if rule in (Rule.HOME, Rule.REPLICATED, Rule.ONCE):
        return None
    what, count = "columns" if rule is Rule.COLUMNS else "rows", shape[-1 if rule is Rule.COLUMNS else 0]
    what = "groups of columns that share a scale" if leaf == "groups" else what
    if rule is Rule.HALF_ROWS:
        what, count = "rows in each half", shape[max(len(shape) - 2, 0)] // 2
    is_kv = HEADS.get(leaf) == "num_key_value_heads"
    if leaf in HEADS:
        what = "key/value heads" if is_kv else "attention heads"
        count = kv_heads_of(config) if is_kv else config.num_attention_heads
    if rule is Rule.KV_ROWS:
        return _unrepeatable(count, tp)
    if count % tp:
        hint = ": quantize with smaller groups" if leaf == "groups" else ""
        return f"{count} {what} are not divisible by tp {tp}{hint}"
    return _unrepeatable(kv_heads_of(config), tp) if rule is Rule.QKV_ROWS else None


def _unrepeatable(kv_heads: int, tp: int) -> str | None:
    if kv_heads % tp == 0 or tp % kv_heads == 0:
        return None
    return f"{kv_heads} key/value heads do not divide tp {tp}, so they cannot be repeated evenly"


def rank_problems(config: Any, has_plan: bool, tp: int) -> Iterator[Problem]:
    """Why transformers can't run a model of this config on `tp` ranks: it repeats no key/value heads."""
    if tp > 1 and not has_plan:
        yield Problem(tp, "model", f"transformers ships no tensor-parallel plan for {config.model_type}")
    for key in dict.fromkeys(HEADS.values()):
        heads = getattr(config, key, None)
        if heads and heads % tp:
            yield Problem(
                tp, "model", f"{key} is {heads}, which is not divisible by tp {tp}; the engine torch needs that"
            )
