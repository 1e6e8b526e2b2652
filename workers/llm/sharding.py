"""How a model is split over `tp` ranks: transformers' own plan, turned into a rule for each parameter. Pure.

The plan (`model.tp_plan`) names a style for modules: colwise splits the rows of the weight, rowwise its columns, and
so on. Modules that own split children, or are split themselves, are blocks: each rank runs its part of a block, and
the parts are joined on rank 0, where all the rest of the model lives.

Key and value heads that are fewer than the ranks are repeated: rank r holds kv head r * kv_heads // tp.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FAMILIES = ("granite", "llama", "mistral", "qwen2", "qwen3")

#: attention projections, and the config key that counts the heads along their split dimension
HEADS = {
    "q_proj": "num_attention_heads",
    "k_proj": "num_key_value_heads",
    "v_proj": "num_key_value_heads",
    "o_proj": "num_attention_heads",
}
REPLICATED_STYLES = ("replicate", "replicated_with_grad_allreduce")
PACKED = re.compile(r"qkv|gate_up|query_key_value|c_attn|Wqkv")

Shape = tuple[int, ...]


class Rule(StrEnum):
    """What a rank holds of a parameter."""

    HOME = "home"  #: whole on rank 0, nothing elsewhere
    REPLICATED = "replicated"  #: whole on every rank
    ROWS = "rows"  #: an equal part along dimension 0
    COLUMNS = "columns"  #: an equal part along dimension 1
    KV_ROWS = "kv_rows"  #: along dimension 0 the rank's one key/value head, which other ranks hold too
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
class Region:
    """The part of a parameter that a rank holds: `start:stop` along `dim`; `is_zero` when it holds zeros instead."""

    shape: Shape
    dim: int = 0
    start: int = 0
    stop: int = 0
    is_zero: bool = False


@dataclass(frozen=True)
class Sharding:
    """Every parameter's rule and every block's join, for one `tp`."""

    tp: int
    rules: Mapping[str, Rule]
    blocks: Mapping[str, Join]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def style_of(module: str, plan: Mapping[str, str]) -> str | None:
    """The plan's style for a module's full name; layer numbers match `*`."""
    return plan.get(module) or plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", module))


def plan_sharding(config: Any, plan: Mapping[str, str], parameters: Mapping[str, Shape], tp: int) -> Sharding:
    """Give each of `parameters` (full name -> whole shape) its rule, and say what stands in the way."""
    whole, warnings = _left_whole(plan, parameters, tp)
    plan = {pattern: style for pattern, style in plan.items() if pattern not in whole}
    styles = {name: style_of(name.rpartition(".")[0], plan) for name in parameters}
    blocks = dict(_blocks(styles))
    rules = {name: _rule(config, name, len(shape), styles[name], blocks, tp) for name, shape in parameters.items()}
    problems = {
        *_model_problems(config, plan, tp),
        *(found for name in parameters if (found := _problem(config, name, parameters, rules, styles, blocks, tp))),
    }
    return Sharding(tp, rules, blocks, tuple(sorted(problems, key=_by_weight)), tuple(warnings))


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


def _blocks(styles: Mapping[str, str | None]) -> Iterator[tuple[str, Join]]:
    for name, style in styles.items():
        module = name.rpartition(".")[0]
        if style in SINGLE_MODULE_BLOCKS:
            yield module, SINGLE_MODULE_BLOCKS[style]
        elif style is not None:
            yield module.rpartition(".")[0], Join.SUM


def block_of(name: str, blocks: Mapping[str, Join]) -> str | None:
    """The block that owns a parameter, if any does."""
    module = name.rpartition(".")[0]
    return next((at for at in (module, module.rpartition(".")[0]) if at in blocks), None)


def _rule(config: Any, name: str, rank: int, style: str | None, blocks: Mapping[str, Join], tp: int) -> Rule:
    if style is None or style not in STYLES:
        return Rule.REPLICATED if block_of(name, blocks) else Rule.HOME
    rule = STYLES[style][0 if rank > 1 else 1]
    key = HEADS.get(name.split(".")[-2])
    if rule is Rule.ROWS and key == "num_key_value_heads" and config.num_key_value_heads < tp:
        return Rule.KV_ROWS
    return rule


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
    if style is None and block_of(name, blocks):
        return Problem(tp, shown, "the plan splits its neighbours but says nothing of this module")
    reason = _indivisible(config, module.rpartition(".")[2], parameters[name], rules[name], tp)
    return Problem(tp, shown, reason) if reason else None


def _indivisible(config: Any, leaf: str, shape: Shape, rule: Rule, tp: int) -> str | None:
    if rule not in (Rule.ROWS, Rule.COLUMNS, Rule.KV_ROWS):
        return None
    what, count = "rows" if rule is Rule.ROWS else "columns", shape[1 if rule is Rule.COLUMNS else 0]
    if leaf in HEADS:
        what = "key/value heads" if "key" in HEADS[leaf] else "attention heads"
        count = getattr(config, HEADS[leaf])
    if rule is Rule.KV_ROWS:
        return None if tp % count == 0 else f"{count} {what} do not divide tp {tp}, so they cannot be repeated evenly"
    return None if count % tp == 0 else f"{count} {what} are not divisible by tp {tp}"


def rank_problems(config: Any, has_plan: bool, tp: int) -> Iterator[Problem]:
    """Why transformers can't run a model of this config on `tp` ranks: it repeats no key/value heads."""
    if tp > 1 and not has_plan:
        yield Problem(tp, "model", f"transformers ships no tensor-parallel plan for {config.model_type}")
    for key in dict.fromkeys(HEADS.values()):
        heads = getattr(config, key)
        if heads % tp:
            yield Problem(
                tp, "model", f"{key} is {heads}, which is not divisible by tp {tp}; the engine torch needs that"
            )


def region_of(sharding: Sharding, name: str, shape: Shape, rank: int, kv_heads: int) -> Region | None:
    """What `rank` holds of the parameter `name`, or None when it holds nothing of it."""
    rule, tp = sharding.rules[name], sharding.tp
    if rule is Rule.HOME:
        return Region(shape, stop=shape[0]) if rank == 0 else None
    if rule in (Rule.REPLICATED, Rule.ONCE):
        return Region(shape, stop=shape[0], is_zero=rule is Rule.ONCE and rank > 0)
    dim = 1 if rule is Rule.COLUMNS else 0
    parts, part = (kv_heads, rank * kv_heads // tp) if rule is Rule.KV_ROWS else (tp, rank)
    size = shape[dim] // parts
    return Region((*shape[:dim], size, *shape[dim + 1 :]), dim, part * size, (part + 1) * size)
