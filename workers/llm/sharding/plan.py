"""Splitting a model over `tp` ranks: transformers' plan, turned into a rule for each parameter. Pure.

The plan (`model.tp_plan`) assigns styles to modules: colwise splits the rows of the weight, rowwise its columns, and so
on. Modules with split children, or that are split themselves, are blocks: each rank runs its part of a block. All ranks
have the rest of the layers, and the last norm; how the parts of a block are joined is in `residual`.

Key and value heads that are fewer than the ranks are repeated: rank r holds kv head r * kv_heads // tp.

Where transformers' plan gathers within a layer, as for packed projections, haloctl has its own styles (INSIDE): a rank
takes its rows of each packed part, and a norm over the whole width sums over the ranks.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.llm.sharding.head_counts import with_head_counts
from workers.llm.sharding.split_problems import cut_group_problems, model_problems, parameter_problem
from workers.llm.sharding.split_styles import (
    HEADS,
    INSIDE,
    NORMS,
    PACKED,
    SINGLE_MODULE_BLOCKS,
    STYLES,
    Join,
    Shape,
    SplitProblem,
    SplitRule,
    is_scale,
    kv_heads_of,
    style_of,
)


@dataclass(frozen=True)
class Sharding:
    """Every parameter's rule and every block's join, for one `tp`."""

    tp: int
    rules: Mapping[str, SplitRule]
    blocks: Mapping[str, Join]
    problems: tuple[SplitProblem, ...] = ()
    warnings: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()  #: modules that sum over the ranks
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0


def plan_sharding(config: Any, plan: Mapping[str, str], parameters: Mapping[str, Shape], tp: int) -> Sharding:
    """Assign a rule to each of `parameters` (full name -> whole shape), and collect what prevents the split."""
    config, head_dim = with_head_counts(config, parameters)
    whole, warnings = _left_whole(plan, parameters, tp)
    plan = {pattern: style for pattern, style in _haloctl_plan(plan).items() if pattern not in whole}
    styles = {name: _style(name, plan, parameters) for name in parameters}
    blocks = dict(_blocks(styles, plan))
    rules = {name: _rule(config, name, shape, styles[name], whole, tp) for name, shape in parameters.items()}
    problems = {
        *model_problems(config, plan, tp),
        *(
            problem
            for name in parameters
            if (problem := parameter_problem(config, name, parameters, rules, styles, blocks, tp))
        ),
        *cut_group_problems(parameters, rules, tp),
    }
    norms = tuple(name.rpartition(".")[0] for name, style in styles.items() if style == "norm_over_ranks")
    in_order = tuple(sorted(problems, key=_by_relevance))
    heads = config.num_attention_heads
    return Sharding(tp, rules, blocks, in_order, tuple(warnings), norms, heads, kv_heads_of(config), head_dim)


def _haloctl_plan(plan: Mapping[str, str]) -> dict[str, str]:
    """Return the plan with haloctl's styles where transformers gathers within a layer."""
    styles = {}
    for pattern, style in plan.items():
        if "layers." in pattern and style == "colwise_gather_output":
            style = INSIDE.get(pattern.rpartition(".")[2], style)
        if style != "moe_tp_experts":  # only says that the experts' parts are summed, as all parts are
            styles[pattern] = "rowwise" if style == "rowwise_split_input" else style
    return styles


def _style(name: str, plan: Mapping[str, str], parameters: Mapping[str, Shape]) -> str | None:
    """Return the style of a parameter: its own, as experts have, or its module's."""
    module = name.rpartition(".")[0]
    style = style_of(name, plan) or style_of(module, plan)
    block, _, leaf = module.rpartition(".")
    spanned = parameters.get(f"{block}.{NORMS[leaf]}.weight") if leaf in NORMS else None
    is_over_ranks = style is None and spanned is not None and parameters[name] == spanned[:1]
    return "norm_over_ranks" if is_over_ranks else style


def _by_relevance(problem: SplitProblem) -> tuple[bool, bool, str]:
    """Sort the most specific first: packed projections, then other modules, then the model as a whole."""
    return not PACKED.search(problem.module), problem.module == "model", problem.module


def _left_whole(plan: Mapping[str, str], parameters: Mapping[str, Shape], tp: int) -> tuple[set[str], list[str]]:
    """Return the vocabulary modules that stay whole on rank 0, which is less even but always correct, and warnings."""
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


def _rule(config: Any, name: str, shape: Shape, style: str | None, whole: Collection[str], tp: int) -> SplitRule:
    if style is None or style not in STYLES:
        return SplitRule.HOME if name.rpartition(".")[0] in whole else SplitRule.REPLICATED
    rule = STYLES[style][0 if len(shape) > 1 else 1]
    if is_scale(name) and shape[-1] == 1 and (len(shape) == 1 or rule is SplitRule.COLUMNS):
        return SplitRule.REPLICATED  # a scale of a whole tensor, or of rows that every rank has a part of
    if is_scale(name) and shape[0] == 1 and len(shape) > 1 and rule is SplitRule.ROWS:
        return SplitRule.REPLICATED  # a scale of the columns of inputs, which every rank has whole
    key = HEADS.get(name.split(".")[-2])
    if rule is SplitRule.ROWS and key == "num_key_value_heads" and kv_heads_of(config) < tp:
        return SplitRule.KV_ROWS
    return rule
