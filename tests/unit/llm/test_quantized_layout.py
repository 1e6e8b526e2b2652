"""The layout of a quantized folder: written, read back, and refused with the reason."""

from typing import Any

import pytest
import torch

from workers.llm.command_line import BadInput
from workers.llm.models.quantized_layout import (
    KEY,
    QuantizationScheme,
    QuantizedLayout,
    default_layout,
    largest_group,
    quantization_config,
    read_layout,
)
from workers.llm.quantized.low_bit_values import e4m3fn_to_fnuz, unpack_int4
from workers.llm.weights.archive_layout import lay_out_archive

LAYOUTS = [
    default_layout("fp8", kv_is_fp8=True),
    default_layout("int8"),
    default_layout("int4", columns=[4096, 14336]),
    default_layout(None, kv_is_fp8=True),
    QuantizedLayout(QuantizationScheme("fp8", "channel", inputs="dynamic"), ("lm_head", "re:.*mlp.*")),
    QuantizedLayout(QuantizationScheme("int8", "channel", has_pre_quant_scale=True)),
    QuantizedLayout(QuantizationScheme("int4", "group", 32, is_symmetric=False, inputs=None)),
    QuantizedLayout(
        QuantizationScheme("int4", "group", 32, is_symmetric=False, inputs=None, has_float_zero_points=True)
    ),
]


def config_of(layout: QuantizedLayout) -> dict[str, Any]:
    return {"model_type": "llama", KEY: quantization_config(layout)}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_written_of_a_layout_is_read_back(layout: QuantizedLayout) -> None:
    assert read_layout(config_of(layout), "config.json") == layout


def test_a_config_without_quantization_has_no_layout() -> None:
    assert read_layout({"model_type": "llama"}, "config.json") is None


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("quant_method",), "gptq", "quant_method is gptq, only compressed-tensors is read"),
        (("config_groups", "group_0", "weights", "num_bits"), 2, "float of 2 bits"),
        (("config_groups", "group_0", "weights", "strategy"), "block", "one scale per block"),
        (("config_groups", "group_0", "weights", "symmetric"), False, "zero points"),
        (("config_groups", "group_0", "targets"), ["re:.*q_proj"], "targets are"),
        (("config_groups", "group_0", "input_activations"), None, "their matmuls would not be fp8"),
        (("config_groups", "group_0", "input_activations", "strategy"), "token", "dynamic: False"),
        (("config_groups", "group_1"), {}, "2 config_groups"),
        (("config_groups", "group_0", "weights"), None, "not as compressed-tensors writes it"),
        (("format",), "marlin-24", "format marlin-24"),
        (("kv_cache_scheme", "num_bits"), 4, "kv_cache_scheme must be fp8"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_reason(path: tuple[str, ...], value: object, reason: str) -> None:
    config = config_of(default_layout("fp8", kv_is_fp8=True))
    place = config[KEY]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BadInput, match=reason) as refused:
        read_layout(config, "/models/x/config.json")
    assert str(refused.value).startswith("/models/x/config.json")


def test_modules_are_left_alone_by_name_or_by_pattern() -> None:
    layout = QuantizedLayout(QuantizationScheme("int8", "channel"), ("lm_head", r"re:.*\.o_proj$"))
    assert layout.scheme_of("lm_head") is None
    assert layout.scheme_of("model.layers.3.self_attn.o_proj") is None
    assert layout.scheme_of("model.layers.3.self_attn.q_proj") == layout.scheme


def test_groups_divide_all_widths() -> None:
    assert largest_group([4096, 14336]) == 128
    assert largest_group([4096, 14336, 704]) == 64
    assert QuantizationScheme("int4", "group", 64, is_symmetric=False, inputs=None).tensors(128, 704) == {
        "weight_packed": ("I32", (128, 88)),
        "weight_shape": ("I64", (2,)),
        "weight_scale": (None, (128, 11)),
        "weight_zero_point": ("I32", (16, 11)),
    }


def test_words_hold_eight_values_the_first_in_the_lowest_bits() -> None:
    words = torch.tensor([[0x76543210, -0x01234568]], dtype=torch.int32)
    assert unpack_int4(words).tolist() == [[*range(-8, 0), *range(8)]]


def test_e4m3fn_is_e4m3fnuz_of_half_the_value_by_its_bits() -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    numbers = bits[(bits & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
    assert torch.equal(e4m3fn_to_fnuz(numbers).float() * 2, numbers.float())
    with pytest.raises(ValueError, match="not a number"):
        e4m3fn_to_fnuz(bits[127:128].view(torch.float8_e4m3fn))


def test_an_entry_of_one_type_keeps_it_and_one_of_several_is_bytes() -> None:
    sizes = {"model.layers.0.a": 10, "model.layers.0.b": 4, "model.layers.1.a": 10, "lm_head": 6}
    types = {"model.layers.0.a": "f8", "model.layers.0.b": "f32", "model.layers.1.a": "f8", "lm_head": "f16"}
    archive = lay_out_archive(sizes, types)
    assert archive.types == {"model.layers.0": None, "model.layers.1": "f8", "lm_head": "f16"}
    assert archive.slots["model.layers.0.b"].offset_bytes == 256


@pytest.mark.parametrize(
    "rule", ["re:[", "re:(a+)+$", "re:(\\w+\\.?)+!", "re:" + ".*a" * 9, "x" * 5000, 7, None, ["lm_head"]]
)
def test_a_rule_that_could_take_for_ever_is_refused(rule: object) -> None:
    section = quantization_config(default_layout("fp8"))
    with pytest.raises(BadInput, match="ignore has"):
        read_layout({KEY: {**section, "ignore": ["lm_head", rule]}}, "config.json")


@pytest.mark.parametrize("rule", ["lm_head", "re:.*lm_head", r"re:.*\.mlp\.(gate|up)$", "re:model.layers.*self_attn.*"])
def test_rules_of_published_models_are_read(rule: str) -> None:
    layout = read_layout({KEY: {**quantization_config(default_layout("fp8")), "ignore": [rule]}}, "config.json")
    assert layout is not None
    assert layout.ignored == (rule,)


def test_groups_have_columns() -> None:
    section = quantization_config(default_layout("int4", columns=[128]))
    section["config_groups"]["group_0"]["weights"]["group_size"] = -1
    with pytest.raises(BadInput, match="groups have -1 columns"):
        read_layout({KEY: section}, "config.json")
