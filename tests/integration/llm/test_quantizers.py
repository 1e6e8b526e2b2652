"""Quantizers: the folder that haloctl's own writes, and other formats unpacked into the layout."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from jobs.stages import STAGES
from tests.integration.models import TEXT, make_checkpoint
from tests.integration.stage_programs import run_here
from workers.llm.command_line import BadInput
from workers.llm.models.added_biases import with_added_biases
from workers.llm.models.model_source import load_model
from workers.llm.models.quantized_layout import QuantizationScheme, read_layout
from workers.llm.quantized.low_bit_values import unpack_int4
from workers.llm.quantizers import haloctl
from workers.llm.quantizers.gguf_row_order import restore_row_order
from workers.llm.quantizers.haloctl import quantize_weight
from workers.llm.quantizers.packed_formats import from_awq, from_gptq, from_q4_0, from_q4_1, from_q4_k
from workers.llm.quantizers.quantized_weight import QuantizedWeight, pack_int4
from workers.llm.weights.checkpoint import read_checkpoint

ROWS, COLUMNS, GROUP = 16, 64, 32
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  #: which column lies where in a word
GROUPED = QuantizationScheme("int4", "group", GROUP, is_symmetric=False, inputs=None, has_float_zero_points=True)


@pytest.fixture
def whole() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values and zero points from 0 to 15, and scales, of a weight [out, in] in groups."""
    random = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (ROWS, COLUMNS), generator=random)
    zeros = torch.randint(1, 16, (ROWS, COLUMNS // GROUP), generator=random)
    scales = torch.rand((ROWS, COLUMNS // GROUP), generator=random).half() + 0.5
    return values, zeros, scales


def dequantized(values: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    spread = zeros.repeat_interleave(GROUP, 1), scales.repeat_interleave(GROUP, 1)
    return (values - spread[0]).float() * spread[1].float()


def words(values: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight columns an int32, `order[i]` the one in the i-th four bits."""
    parts = values.view(len(values), -1, 8)[..., list(order)]
    packed = sum(parts[..., place] << 4 * place for place in range(8))
    assert isinstance(packed, torch.Tensor)
    return packed.to(torch.int32)


def test_gptq_becomes_the_layout(whole: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    values, zeros, scales = whole
    parts = {"qweight": words(values).T, "qzeros": words(zeros.T - 1), "scales": scales.T}
    weight = from_gptq(parts, has_old_zeros=True)
    assert torch.equal(weight.dequantized(), dequantized(*whole))
    newer = {**parts, "qzeros": words(zeros.T), "g_idx": torch.arange(COLUMNS) // GROUP}
    assert torch.equal(from_gptq(newer, has_old_zeros=False).dequantized(), dequantized(*whole))
    with pytest.raises(BadInput, match="activation order"):
        from_gptq({**newer, "g_idx": newer["g_idx"].flip(0)}, has_old_zeros=False)


def test_awq_becomes_the_layout(whole: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    values, zeros, scales = whole
    parts = {"qweight": words(values.T.contiguous(), AWQ), "qzeros": words(zeros.T.contiguous(), AWQ)}
    assert torch.equal(from_awq({**parts, "scales": scales.T}).dequantized(), dequantized(*whole))


def test_q4_0_becomes_the_layout_value_for_value(whole: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    values, _, scales = whole
    blocks = values.view(-1, 32)
    packed = (blocks[:, :16] | blocks[:, 16:] << 4).to(torch.uint8)
    stored = torch.cat([scales.reshape(-1, 1).view(torch.uint8).view(-1, 2), packed], 1)
    expected = dequantized(values, torch.full((ROWS, COLUMNS // GROUP), 8), scales)
    assert torch.equal(from_q4_0(stored, ROWS).dequantized(), expected)


def halves(*columns: torch.Tensor) -> torch.Tensor:
    """The bytes of half-precision numbers, side by side."""
    return torch.stack(columns, 1).half().view(torch.uint8).view(len(columns[0]), -1)


def test_q4_1_becomes_the_layout_with_a_minimum_for_each_group(
    whole: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    values, zeros, scales = whole
    scales[0, 0], scales[1, 1] = 0, 1e-7  # of values that are all the same, and nearly
    minima = (-zeros * 0.37).half()
    blocks = values.view(-1, 32)
    packed = (blocks[:, :16] | blocks[:, 16:] << 4).to(torch.uint8)
    stored = torch.cat([halves(scales.flatten(), minima.flatten()), packed], 1)
    spread = minima.repeat_interleave(GROUP, 1).float(), scales.repeat_interleave(GROUP, 1).float()
    weight = from_q4_1(stored, ROWS)
    assert torch.allclose(weight.dequantized(), values * spread[1] + spread[0], rtol=1e-5, atol=1e-5)
    (zero,) = weight.tensors("x", GROUPED).keys() & {"x.weight_zero_point"}
    assert weight.tensors("x", GROUPED)[zero].dtype == torch.float32


def test_q4_k_becomes_the_layout_with_a_minimum_for_each_group() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randint(0, 16, (4, 8, 32), generator=random)
    scales, minima = (torch.randint(1, 64, (4, 8), generator=random) for _ in range(2))
    scale, minimum = (torch.rand(4, generator=random).half() + 0.5 for _ in range(2))
    high = [scales[:, 4:] >> 4 << 6, minima[:, 4:] >> 4 << 6]
    low = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    six_bits = torch.cat([scales[:, :4] | high[0], minima[:, :4] | high[1], low], 1).to(torch.uint8)
    packed = (values[:, ::2] | values[:, 1::2] << 4).to(torch.uint8).flatten(1)
    weight = from_q4_k(torch.cat([halves(scale, minimum), six_bits, packed], 1), 2)
    steps, least = scale[:, None].float() * scales, minimum[:, None].float() * minima
    expected = (values * steps[..., None] - least[..., None]).view(2, -1)
    assert torch.allclose(weight.dequantized(), expected, rtol=1e-5, atol=1e-5)


def test_weights_without_minima_stand_beside_those_with_them() -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) + 1
    with_minima = quantize_weight(weight, GROUPED)
    assert with_minima.error(weight) < quantize_weight(weight, replace(GROUPED, has_float_zero_points=False)).error(
        weight
    )
    without = QuantizedWeight(torch.ones(16, 64, dtype=torch.int8), torch.ones(16, 2))
    assert not without.tensors("x", GROUPED)["x.weight_zero_point"].any()


def test_rows_that_llama_cpp_reordered_are_put_back() -> None:
    heads, half = 2, 3
    rows = torch.arange(heads * 2 * half)
    reordered = rows.view(heads, 2, half).swapaxes(1, 2).reshape(-1)  # as its convert_hf_to_gguf.py permutes
    assert torch.equal(restore_row_order(reordered, heads), rows)
    assert torch.equal(restore_row_order(reordered, None), reordered)


def test_what_is_packed_is_unpacked_the_same() -> None:
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(3, 1)
    assert torch.equal(unpack_int4(pack_int4(values)), values)


def test_a_clipped_scale_is_no_worse() -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    scheme = QuantizationScheme("int4", "group", 32, inputs=None)
    assert quantize_weight(weight, scheme, clip=True).error(weight) < quantize_weight(weight, scheme).error(weight)


def test_haloctls_own_quantizer_writes_the_layout(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "workers.llm.quantizers.haloctl", "--model=tiny-llama"]
    flags = ["--precision=fp8", "--granularity=tensor", "--inputs=static", "--scale-kv-cache"]
    size = ["--windows=2", "--tokens=32", "--override=num_hidden_layers=1"]
    subprocess.run([*program, *size, *flags], cwd=tmp_path, check=True, timeout=120)
    folder = tmp_path / "outputs"
    layout = read_layout(json.loads((folder / "config.json").read_text()), folder)
    assert layout is not None
    stored = read_checkpoint(folder)
    name = "model.layers.0.mlp.down_proj"
    scheme = layout.scheme_of(name)
    assert scheme is not None
    for leaf, (kind, shape) in scheme.tensors(128, 512).items():
        tensor = stored[f"{name}.{leaf}"]
        assert (tensor.shape, tensor.dtype) == (shape, kind or "F32"), leaf
    assert layout.scheme_of("lm_head") is None
    assert stored["lm_head.weight"].dtype == "F32"
    assert layout.has_fp8_kv_cache and stored["model.layers.0.self_attn.k_scale"].shape == (1,)
    report = json.loads((folder / "quantize.json").read_text())
    assert len(report["quantized"]) == 7
    assert max(report["relative_errors"].values()) < 0.03
    measured = {
        measurement.metric: measurement.samples[0]
        for measurement in STAGES["quantize"].parse({}, tmp_path).measurements
    }
    assert measured["quantized_bytes"] == (folder / "model.safetensors").stat().st_size


def test_biases_that_were_added_are_the_models_from_then_on(tmp_path: Path) -> None:
    tiny = load_model("tiny-llama", None, {})
    assert with_added_biases(tiny, None) is tiny
    config = {**tiny.config.to_dict(), "attention_bias": True, "mlp_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    config_with_biases = with_added_biases(tiny, tmp_path).config
    assert (config_with_biases.attention_bias, config_with_biases.mlp_bias, tiny.config.mlp_bias) == (True, True, False)


def test_an_error_is_that_of_the_numbers_that_are_stored() -> None:
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    exact = QuantizedWeight(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), torch.tensor([1.0]))
    assert exact.error(weight) == 0
    assert QuantizedWeight(exact.values, torch.tensor([2.0])).error(weight) == pytest.approx(1)


def test_an_fp8_cache_is_scaled_in_every_family_s_attention(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "gpt_neox", num_key_value_heads=3)
    text = tmp_path / "text"
    text.write_text(" ".join(TEXT * 20))
    (tmp_path / "outputs").mkdir()
    flags = ("--scale-kv-cache", "--windows=2", "--tokens=16", f"--text={text}")
    run_here(haloctl.main, tmp_path, f"--model={model}", *flags)
    scales = {name for name in read_checkpoint(tmp_path / "outputs") if name.endswith("_scale")}
    assert scales == {f"gpt_neox.layers.{layer}.attention.{part}_scale" for layer in range(2) for part in "kv"}
