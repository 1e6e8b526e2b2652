"""Splitting a model's parameters over ranks."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from workers.llm.sharding.plan import plan_sharding
from workers.llm.sharding.shard_regions import shard_region_of
from workers.llm.sharding.split_styles import Join, Shape, SplitRule, style_of

PLAN = {
    "model.embed_tokens": "embedding_rowwise",
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "lm_head": "colwise_gather_output",
}
SHAPES: dict[str, Shape] = {
    "model.embed_tokens.weight": (256, 64),
    "model.layers.10.input_layernorm.weight": (64,),
    "model.layers.10.self_attn.q_proj.weight": (64, 64),
    "model.layers.10.self_attn.q_proj.bias": (64,),
    "model.layers.10.self_attn.q_norm.weight": (8,),
    "model.layers.10.self_attn.k_proj.weight": (16, 64),
    "model.layers.10.self_attn.o_proj.weight": (64, 64),
    "model.layers.10.self_attn.o_proj.bias": (64,),
    "lm_head.weight": (256, 64),
}
ATTENTION = "model.layers.10.self_attn"


def config(**values: Any) -> SimpleNamespace:
    numbers = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
    return SimpleNamespace(**{"model_type": "llama", **numbers, **values})


def reasons(plan: dict[str, str], shapes: dict[str, Shape], tp: int, **values: Any) -> dict[str, str]:
    return {problem.module: problem.reason for problem in plan_sharding(config(**values), plan, shapes, tp).problems}


def test_layer_numbers_match_the_star_of_a_plan() -> None:
    assert style_of("model.layers.10.self_attn.q_proj", PLAN) == "colwise"
    assert style_of("model.layers.10.input_layernorm", PLAN) is None


def test_each_style_becomes_a_rule() -> None:
    sharding = plan_sharding(config(), PLAN, SHAPES, 2)
    assert sharding.rules == {
        "model.embed_tokens.weight": SplitRule.ROWS,
        "model.layers.10.input_layernorm.weight": SplitRule.REPLICATED,
        f"{ATTENTION}.q_proj.weight": SplitRule.ROWS,
        f"{ATTENTION}.q_proj.bias": SplitRule.ROWS,
        f"{ATTENTION}.q_norm.weight": SplitRule.REPLICATED,
        f"{ATTENTION}.k_proj.weight": SplitRule.ROWS,
        f"{ATTENTION}.o_proj.weight": SplitRule.COLUMNS,
        f"{ATTENTION}.o_proj.bias": SplitRule.ONCE,
        "lm_head.weight": SplitRule.ROWS,
    }
    assert sharding.blocks == {"model.embed_tokens": Join.SUM, ATTENTION: Join.SUM, "lm_head": Join.CONCAT}
    assert not sharding.problems


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_the_parts_of_a_split_parameter_cover_it_once(tp: int) -> None:
    sharding = plan_sharding(config(), PLAN, SHAPES, tp)
    for name, rule in sharding.rules.items():
        if rule in (SplitRule.ROWS, SplitRule.COLUMNS):
            regions = [shard_region_of(sharding, name, SHAPES[name], rank) for rank in range(tp)]
            bounds = [segment for region in regions if region for segment in region.segments]
            assert bounds[0][0] == 0
            assert bounds[-1][1] == SHAPES[name][1 if rule is SplitRule.COLUMNS else 0]
            assert all(before[1] == after[0] for before, after in pairwise(bounds))


def test_two_key_value_heads_on_eight_ranks_are_held_four_times_each() -> None:
    sharding = plan_sharding(config(), PLAN, SHAPES, 8)
    name = f"{ATTENTION}.k_proj.weight"
    assert sharding.rules[name] is SplitRule.KV_ROWS
    regions = [shard_region_of(sharding, name, SHAPES[name], rank) for rank in range(8)]
    assert [region.segments for region in regions if region] == [((0, 8),)] * 4 + [((8, 16),)] * 4


def segments(plan: dict[str, str], name: str, shape: Shape, tp: int, **values: Any) -> list[Any]:
    """The part of one parameter on each rank, after asserting that nothing prevents the split."""
    sharding = plan_sharding(config(**values), plan, {name: shape}, tp)
    assert not sharding.problems
    regions = [shard_region_of(sharding, name, shape, rank) for rank in range(tp)]
    return [region and (region.shape, region.segments) for region in regions]


def test_a_rank_takes_its_rows_of_each_part_of_a_packed_projection() -> None:
    plan = {"model.layers.*.self_attn.qkv_proj": "colwise_gather_output"}
    held = segments(plan, f"{ATTENTION}.qkv_proj.weight", (96, 64), 2)
    assert held[1] == ((48, 64), ((32, 64), (72, 80), (88, 96)))
    held = segments(plan, f"{ATTENTION}.qkv_proj.weight", (96, 64), 4)
    assert held[1] == ((32, 64), ((16, 32), (64, 72), (80, 88)))


def test_a_rank_takes_its_rows_of_both_halves_in_each_expert() -> None:
    plan = {"model.layers.*.mlp.experts.gate_up_proj": "packed_colwise", "model.layers.*.mlp.experts": "moe_tp_experts"}
    name = "model.layers.1.mlp.experts.gate_up_proj"
    assert segments(plan, name, (2, 8, 64), 2)[1] == ((2, 4, 64), ((2, 4), (6, 8), (10, 12), (14, 16)))
    assert plan_sharding(config(), plan, {name: (2, 8, 64)}, 2).blocks == {"model.layers.1.mlp.experts": Join.SUM}
    assert reasons(plan, {name: (2, 8, 64)}, 8)["model.layers.*.mlp.experts"] == (
        "4 rows in each half are not divisible by tp 8"
    )


def test_a_norm_over_the_whole_width_goes_with_its_projection() -> None:
    plan = {"model.layers.*.self_attn.k_proj": "colwise_gather_output"}
    shapes: dict[str, Shape] = {f"{ATTENTION}.k_proj.weight": (16, 64), f"{ATTENTION}.k_norm.weight": (16,)}
    sharding = plan_sharding(config(), plan, shapes, 4)
    assert not sharding.problems
    assert sharding.norms == (f"{ATTENTION}.k_norm",)
    assert sharding.rules[f"{ATTENTION}.k_norm.weight"] is SplitRule.KV_ROWS


def test_a_rowwise_bias_is_zero_on_all_ranks_but_the_first() -> None:
    sharding = plan_sharding(config(), PLAN, SHAPES, 2)
    regions = [shard_region_of(sharding, f"{ATTENTION}.o_proj.bias", (64,), rank) for rank in range(2)]
    assert [region.is_zero for region in regions if region] == [False, True]


def test_a_vocabulary_that_does_not_divide_stays_whole_with_a_warning() -> None:
    shapes = {**SHAPES, "lm_head.weight": (255, 64)}
    sharding = plan_sharding(config(), PLAN, shapes, 2)
    assert sharding.rules["lm_head.weight"] is SplitRule.HOME
    assert "lm_head" not in sharding.blocks
    assert sharding.warnings == ("lm_head stays whole on device 0 at tp 2: its 255 rows are not divisible by 2",)


def test_heads_that_do_not_divide_are_reported_with_their_module() -> None:
    problems = reasons(PLAN, SHAPES, 16)
    assert problems["model.layers.*.self_attn.q_proj"] == "8 attention heads are not divisible by tp 16"


def test_key_value_heads_that_cannot_be_repeated_evenly_are_reported() -> None:
    problems = reasons(PLAN, {**SHAPES, f"{ATTENTION}.k_proj.weight": (24, 64)}, 4)
    expected = "3 key/value heads do not divide tp 4, so they cannot be repeated evenly"
    assert problems["model.layers.*.self_attn.k_proj"] == expected


def test_heads_are_those_of_the_projections_whatever_a_config_says() -> None:
    sharding = plan_sharding(config(num_key_value_heads=3, head_dim=20), PLAN, SHAPES, 2)
    assert (sharding.heads, sharding.kv_heads, sharding.head_dim) == (8, 2, 8)
    packed: dict[str, Shape] = {
        f"{ATTENTION}.qkv_proj.weight_packed": (96, 32),
        f"{ATTENTION}.o_proj.weight_packed": (64, 32),
    }
    assert plan_sharding(config(num_key_value_heads=8), {}, packed, 1).kv_heads == 2


def test_a_packed_projection_is_reported_first() -> None:
    plan = {**PLAN, "model.layers.*.self_attn.c_attn": "colwise_gather_output"}
    shapes = {**SHAPES, f"{ATTENTION}.c_attn.weight": (96, 64)}
    module, reason = next(iter(reasons(plan, shapes, 16).items()))
    assert module == "model.layers.*.self_attn.c_attn"
    assert "packed projection" in reason


def test_a_module_that_the_plan_forgot_inside_a_split_block_is_reported() -> None:
    shapes = {**SHAPES, f"{ATTENTION}.k_norm.weight": (8,)}
    assert "says nothing of this module" in reasons(PLAN, shapes, 2)["model.layers.*.self_attn.k_norm"]


def test_a_model_without_a_plan_works_on_one_device_only() -> None:
    assert "no tensor-parallel plan" in reasons({}, SHAPES, 2)["model"]
    assert reasons({}, SHAPES, 1) == {}


def test_an_unknown_family_is_split_no_further_than_tp_1() -> None:
    assert reasons(PLAN, SHAPES, 1, model_type="gpt_oss") == {}
    problem = reasons(PLAN, SHAPES, 2, model_type="gpt_oss")["model"]
    assert "gpt_oss are not supported: give tp 1, or a model of gemma2, gpt_neox" in problem


def test_a_group_of_columns_that_a_split_would_cut_is_reported_with_the_size_that_fits_all_modules() -> None:
    plan = {**PLAN, "model.layers.*.mlp.down_proj": "rowwise"}
    shapes: dict[str, Shape] = {
        f"{ATTENTION}.q_proj.weight_packed": (64, 32),
        f"{ATTENTION}.q_proj.weight_scale": (64, 2),
        f"{ATTENTION}.o_proj.weight_packed": (64, 64),
        f"{ATTENTION}.o_proj.weight_scale": (64, 4),
        "model.layers.10.mlp.down_proj.weight_packed": (64, 128),
        "model.layers.10.mlp.down_proj.weight_scale": (64, 8),
        "model.layers.10.mlp.down_proj.weight_zero_point": (64, 8),
    }
    assert not reasons(plan, shapes, 4)
    assert reasons(plan, shapes, 8) == {
        "model.layers.*.self_attn.o_proj": "each device holds 16 of its 128 columns, which cuts groups of 32 that "
        "share a scale: quantize with group_size 16"
    }
    problems = reasons(plan, shapes, 16, num_attention_heads=16)
    assert list(problems) == ["model.layers.*.mlp.down_proj", "model.layers.*.self_attn.o_proj"]
    assert problems["model.layers.*.mlp.down_proj"].endswith(": no group_size from 16 fits: take a lower tp")
