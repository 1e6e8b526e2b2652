"""What prevents splitting a model over `tp` ranks: the module and the reason. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workers.llm.models.quantization_groups import GroupedWeight, find_cut_groups
from workers.llm.sharding.split_styles import (
    FAMILIES,
    GROUPED,
    HEADS,
    PACKED,
    SINGLE_MODULE_BLOCKS,
    STYLES,
    UNSUITED,
    Join,
    Shape,
    SplitProblem,
    SplitRule,
    block_of,
    is_scale,
    kv_heads_of,
)


def family_problem(config: Any, tp: int = 1) -> tuple[str, str] | None:
    """Return the module that prevents exporting a model of this family, and the reason; None where nothing is known."""
    family = config.model_type
    if family in UNSUITED:
        module, reason = UNSUITED[family]
        return module, f"the family {family} is not supported: {reason}"
    if family in FAMILIES or tp == 1:
        return None
    return "model", f"splits of the family {family} are not supported: give tp 1, or a model of {', '.join(FAMILIES)}"


def model_problems(config: Any, plan: Mapping[str, str], tp: int) -> Iterator[SplitProblem]:
    """Yield the problems of the model as a whole."""
    if family := family_problem(config, tp):
        yield SplitProblem(tp, *family)
    if not any("layers" in pattern for pattern in plan) and tp > 1:
        yield SplitProblem(
            tp, "model", f"transformers ships no tensor-parallel plan for {config.model_type}: only tp 1 works"
        )


def cut_group_problems(
    parameters: Mapping[str, Shape], rules: Mapping[str, SplitRule], tp: int
) -> Iterator[SplitProblem]:
    """Yield the problems of quantized weights with groups that would lie on two ranks."""
    for module, reason in find_cut_groups(_grouped_weights(parameters, rules), tp):
        yield SplitProblem(tp, _for_all_layers(module), reason)


def _grouped_weights(parameters: Mapping[str, Shape], rules: Mapping[str, SplitRule]) -> dict[str, GroupedWeight]:
    """Return the weights with a scale for each group of columns; a byte holds two int4 values."""
    weights = {}
    for name, (*_, width) in parameters.items():
        scales = parameters.get(name.replace("weight_packed", "weight_scale"))
        if name.endswith(".weight_packed") and scales is not None:
            weights[name.rpartition(".")[0]] = GroupedWeight(2 * width, scales[-1], rules[name] is SplitRule.COLUMNS)
    return weights


def _for_all_layers(module: str) -> str:
    """Return a module's name with `*` for the layer number."""
    return re.sub(r"\.\d+\.", ".*.", module)


def parameter_problem(
    config: Any,
    name: str,
    parameters: Mapping[str, Shape],
    rules: Mapping[str, SplitRule],
    styles: Mapping[str, str | None],
    blocks: Mapping[str, Join],
    tp: int,
) -> SplitProblem | None:
    """Return why one parameter can't be split by its rule, or None."""
    module = name.rpartition(".")[0]
    style, pattern = styles[name], _for_all_layers(module)
    in_layer = pattern != module
    if tp == 1:
        return None
    if style is not None and (style not in STYLES or (in_layer and style in SINGLE_MODULE_BLOCKS)):
        kind = "a packed projection" if PACKED.search(module) else "a split that is not supported"
        return SplitProblem(
            tp, pattern, f"the plan's style {style} is {kind}: its rows can't be divided among the ranks"
        )
    if style is None and block_of(name, blocks) and not is_scale(name):
        return SplitProblem(tp, pattern, "the plan splits its neighbours but says nothing of this module")
    if rules[name] is SplitRule.COLUMNS and name.endswith(GROUPED):
        return None  # `find_cut_groups` gives a better reason
    reason = _indivisible(config, module.rpartition(".")[2], parameters[name], rules[name], tp)
    return SplitProblem(tp, pattern, reason) if reason else None


def _indivisible(config: Any, leaf: str, shape: Shape, rule: SplitRule, tp: int) -> str | None:
    if rule in (SplitRule.HOME, SplitRule.REPLICATED, SplitRule.ONCE):
        return None
    unit, count = "columns" if rule is SplitRule.COLUMNS else "rows", shape[-1 if rule is SplitRule.COLUMNS else 0]
    if rule is SplitRule.HALF_ROWS:
        unit, count = "rows in each half", shape[max(len(shape) - 2, 0)] // 2
    is_kv = HEADS.get(leaf) == "num_key_value_heads"
    if leaf in HEADS:
        unit = "key/value heads" if is_kv else "attention heads"
        count = kv_heads_of(config) if is_kv else config.num_attention_heads
    if rule is SplitRule.KV_ROWS:
        return _unrepeatable(count, tp)
    if count % tp:
        return f"{count} {unit} are not divisible by tp {tp}"
    return _unrepeatable(kv_heads_of(config), tp) if rule is SplitRule.QKV_ROWS else None


def _unrepeatable(kv_heads: int, tp: int) -> str | None:
    if kv_heads % tp == 0 or tp % kv_heads == 0:
        return None
    return f"{kv_heads} key/value heads do not divide tp {tp}, so they cannot be repeated evenly"


def rank_problems(config: Any, has_plan: bool, tp: int) -> Iterator[SplitProblem]:
    """Yield why transformers can't run a model on `tp` ranks: unlike haloctl it repeats no key/value heads."""
    if tp > 1 and not has_plan:
        yield SplitProblem(tp, "model", f"transformers ships no tensor-parallel plan for {config.model_type}")
    for key in dict.fromkeys(HEADS.values()):
        heads = getattr(config, key, None)
        if heads and heads % tp:
            yield SplitProblem(
                tp, "model", f"{key} is {heads}, which is not divisible by tp {tp}; the engine torch needs that"
            )
