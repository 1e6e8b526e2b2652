"""How a model is split over `tp` ranks: transformers' own plan, turned into a rule for each parameter. Pure.

The plan (`model.tp_plan`) names a style for modules: colwise splits the rows of the weight, rowwise its columns, and
so on. Modules that own split children, or are split themselves, are blocks: each rank runs its part of a block, and
the parts are joined on rank 0, where all the rest of the model lives.

Key and value heads that are fewer than the ranks are repeated: rank r holds kv head r * kv_heads // tp.

Where transformers' plan gathers within a layer, as for packed projections, haloctl has styles of its own (INSIDE): a
rank takes its rows of each part that is packed, and a norm over the whole width sums up over the ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.llm.split_problems import cut_group_problems, model_problems, parameter_problem
from workers.llm.split_styles import (
    HEADS,
    INSIDE,
    NORMS,
    PACKED,
    SINGLE_MODULE_BLOCKS,
    STYLES,
    Join,
    Problem,
    Rule,
    Shape,
    block_of,
    is_scale,
    kv_heads_of,
    style_of,
)


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


def plan_sharding(config: Any, plan: Mapping[str, str], parameters: Mapping[str, Shape], tp: int) -> Sharding:
    """Give each of `parameters` (full name -> whole shape) its rule, and say what stands in the way."""
    whole, warnings = _left_whole(plan, parameters, tp)
    plan = {pattern: style for pattern, style in _own(plan).items() if pattern not in whole}
    styles = {name: _style(name, plan, parameters) for name in parameters}
    blocks = dict(_blocks(styles, plan))
    rules = {name: _rule(config, name, shape, styles[name], blocks, tp) for name, shape in parameters.items()}
    problems = {
        *model_problems(config, plan, tp),
        *(
            found
            for name in parameters
            if (found := parameter_problem(config, name, parameters, rules, styles, blocks, tp))
        ),
        *cut_group_problems(parameters, rules, tp),
    }
    norms = tuple(name.rpartition(".")[0] for name, style in styles.items() if style == "norm_over_ranks")
    in_order = tuple(sorted(problems, key=_by_weight))
    heads = config.num_attention_heads
    return Sharding(tp, rules, blocks, in_order, tuple(warnings), norms, heads, kv_heads_of(config))


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


def _rule(config: Any, name: str, shape: Shape, style: str | None, blocks: Mapping[str, Join], tp: int) -> Rule:
    if style is None or style not in STYLES:
        return Rule.REPLICATED if block_of(name, blocks) else Rule.HOME
    rule = STYLES[style][0 if len(shape) > 1 else 1]
    if is_scale(name) and shape[-1] == 1 and (len(shape) == 1 or rule is Rule.COLUMNS):
        return Rule.REPLICATED  # of a whole tensor, or of rows that every rank has a part of
    if is_scale(name) and shape[0] == 1 and len(shape) > 1 and rule is Rule.ROWS:
        return Rule.REPLICATED  # of the columns of inputs, which every rank has whole
    key = HEADS.get(name.split(".")[-2])
    if rule is Rule.ROWS and key == "num_key_value_heads" and kv_heads_of(config) < tp:
        return Rule.KV_ROWS
    return rule
