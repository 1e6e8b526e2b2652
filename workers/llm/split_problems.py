"""What stands in the way of splitting a model over `tp` ranks: the module, and the reason. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workers.llm.groups import Grouped, cut_groups
from workers.llm.split_styles import (
    FAMILIES,
    GROUPED,
    HEADS,
    PACKED,
    SINGLE_MODULE_BLOCKS,
    STYLES,
    UNSUITED,
    Join,
    Problem,
    Rule,
    Shape,
    block_of,
    is_scale,
    kv_heads_of,
)


def family_problem(config: Any) -> tuple[str, str] | None:
    """The module by which a model of a family can't be exported, and the reason."""
    family = config.model_type
    if family in FAMILIES:
        return None
    module, reason = UNSUITED.get(family, ("model", ""))
    text = f"the family {family} is not supported{': ' if reason else ''}{reason}"
    return module, f"{text}; these are: {', '.join(FAMILIES)}"


def model_problems(config: Any, plan: Mapping[str, str], tp: int) -> Iterator[Problem]:
    """What is wrong with the model as a whole."""
    if family := family_problem(config):
        yield Problem(tp, *family)
    if not any("layers" in pattern for pattern in plan) and tp > 1:
        yield Problem(
            tp, "model", f"transformers ships no tensor-parallel plan for {config.model_type}: only tp 1 works"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        yield Problem(tp, "model.rotary_emb", f"rope type {rope} changes with the sequence: it cannot be exported")


def cut_group_problems(parameters: Mapping[str, Shape], rules: Mapping[str, Rule], tp: int) -> Iterator[Problem]:
    """Groups of quantized weights that would lie on two ranks."""
    for module, reason in cut_groups(_grouped(parameters, rules), tp):
        yield Problem(tp, _shown(module), reason)


def _grouped(parameters: Mapping[str, Shape], rules: Mapping[str, Rule]) -> dict[str, Grouped]:
    """Modules whose weights have a scale for each group of columns; two values of four bits are in a byte."""
    found = {}
    for name, (*_, width) in parameters.items():
        scales = parameters.get(name.replace("weight_packed", "weight_scale"))
        if name.endswith(".weight_packed") and scales is not None:
            found[name.rpartition(".")[0]] = Grouped(2 * width, scales[-1], rules[name] is Rule.COLUMNS)
    return found


def _shown(module: str) -> str:
    """A module's name for all layers."""
    return re.sub(r"\.\d+\.", ".*.", module)


def parameter_problem(
    config: Any,
    name: str,
    parameters: Mapping[str, Shape],
    rules: Mapping[str, Rule],
    styles: Mapping[str, str | None],
    blocks: Mapping[str, Join],
    tp: int,
) -> Problem | None:
    """What is wrong with how one parameter would be split."""
    module = name.rpartition(".")[0]
    style, shown = styles[name], _shown(module)
    in_layer = shown != module
    if tp == 1:
        return None
    if style is not None and (style not in STYLES or (in_layer and style in SINGLE_MODULE_BLOCKS)):
        why = "a packed projection" if PACKED.search(module) else "a split that is not supported"
        return Problem(tp, shown, f"the plan's style {style} is {why}: the ranks' parts do not come apart by rows")
    if style is None and block_of(name, blocks) and not is_scale(name):
        return Problem(tp, shown, "the plan splits its neighbours but says nothing of this module")
    if rules[name] is Rule.COLUMNS and name.endswith(GROUPED):
        return None  # `cut_groups` says more
    reason = _indivisible(config, module.rpartition(".")[2], parameters[name], rules[name], tp)
    return Problem(tp, shown, reason) if reason else None


def _indivisible(config: Any, leaf: str, shape: Shape, rule: Rule, tp: int) -> str | None:
    if rule in (Rule.HOME, Rule.REPLICATED, Rule.ONCE):
        return None
    what, count = "columns" if rule is Rule.COLUMNS else "rows", shape[-1 if rule is Rule.COLUMNS else 0]
    if rule is Rule.HALF_ROWS:
        what, count = "rows in each half", shape[max(len(shape) - 2, 0)] // 2
    is_kv = HEADS.get(leaf) == "num_key_value_heads"
    if leaf in HEADS:
        what = "key/value heads" if is_kv else "attention heads"
        count = kv_heads_of(config) if is_kv else config.num_attention_heads
    if rule is Rule.KV_ROWS:
        return _unrepeatable(count, tp)
    if count % tp:
        return f"{count} {what} are not divisible by tp {tp}"
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
