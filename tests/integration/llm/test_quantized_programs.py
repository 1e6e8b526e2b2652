"""Programs of quantized folders: they compute with the stored numbers, and hold them in as few bits."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import iree.runtime
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests.integration.llm.test_export import (
    assert_nothing_lasting_is_copied,
    compile_for_cpu,
    program_logits,
    run,
    store_other_head,
)
from tests.integration.models import make_checkpoint
from workers.llm.command_line import BadInput
from workers.llm.models.model_source import load_model
from workers.llm.models.quantized_layout import (
    BITS,
    KEY,
    LARGEST,
    QuantizationScheme,
    QuantizedLayout,
    quantization_config,
)
from workers.llm.programs import export
from workers.llm.quantized.dequantized import load_dequantized
from workers.llm.quantizers.haloctl import quantize_weight
from workers.llm.quantizers.quantized_folder import write_folder
from workers.llm.quantizers.quantized_weight import QuantizedWeight, round_to
from workers.llm.runtime.iree_session import IreeSession

PROMPT, STEPS, LARGEST_INPUT = 16, 4, 6.0


@dataclass(frozen=True)
class QuantizedCase:
    """A layout, and how its program is exported."""

    layout: QuantizedLayout
    tp: int
    activations: str
    tolerance: float  #: largest difference of a logit from the same numbers in torch
    low: str  #: what the program's weights are

    def __str__(self) -> str:
        scheme = self.layout.scheme
        assert scheme is not None
        return f"{scheme.precision}-{scheme.granularity}-{scheme.inputs}-tp{self.tp}"


CASES = [
    # keys and values of the prompt are rounded in the cache alone, which torch is not told
    QuantizedCase(
        QuantizedLayout(QuantizationScheme("fp8", "tensor", has_pre_quant_scale=True), has_fp8_kv_cache=True),
        2,
        "f32",
        0.4,
        "f8E4M3FNUZ",
    ),
    QuantizedCase(QuantizedLayout(QuantizationScheme("int8", "channel", inputs="dynamic")), 1, "f32", 0.02, "i8"),
    QuantizedCase(QuantizedLayout(QuantizationScheme("int4", "group", 16, False, None)), 2, "f16", 5e-2, "i4"),
    QuantizedCase(
        QuantizedLayout(QuantizationScheme("int4", "group", 32, False, None, has_float_zero_points=True)),
        1,
        "f16",
        5e-2,
        "i4",
    ),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("quantized") / "model", "qwen2", tie_word_embeddings=False)


def linear_modules(model: nn.Module) -> dict[str, nn.Linear]:
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    return {name: part for name, part in linear.items() if name != "lm_head"}


def with_zero_points(weight: torch.Tensor, scheme: QuantizationScheme) -> QuantizedWeight:
    """Weights in groups whose smallest value is -8 and largest 7."""
    assert scheme.group_size is not None
    groups = weight.reshape(len(weight), -1, scheme.group_size)
    least, most = groups.amin(-1), groups.amax(-1)
    scale = (most - least) / 15
    if scheme.has_float_zero_points:
        return quantize_weight(weight, scheme)
    zero = (-8 - least / scale).round().clamp(-8, 7)
    values = (groups / scale[..., None] + zero[..., None]).round().clamp(-8, 7)
    return QuantizedWeight(values.to(torch.int8).reshape(weight.shape), scale, zero.to(torch.int8))


def round_inputs(
    scheme: QuantizationScheme, smoothing: torch.Tensor
) -> Callable[[nn.Module, tuple[torch.Tensor]], torch.Tensor]:
    """A hook that gives a module its inputs as they are when they have been rounded."""
    largest = LARGEST[scheme.precision]

    def hook(_: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        static = torch.tensor(LARGEST_INPUT / largest)
        x = inputs[0] * smoothing
        scale = static if scheme.inputs == "static" else x.abs().amax(-1, keepdim=True) / largest
        return round_to(x / scale, scheme.precision).float() * scale / smoothing

    return hook


def make(original: Path, folder: Path, layout: QuantizedLayout) -> nn.Module:
    """Write the quantized folder; returns a model in torch that computes with the same numbers."""
    scheme = layout.scheme
    assert scheme is not None
    model: nn.Module = AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32, attn_implementation="eager")
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in linear_modules(model).items():
        smoothing = torch.linspace(0.5, 2, module.in_features)[None] if scheme.has_pre_quant_scale else torch.ones(1, 1)
        weight = module.weight.data / smoothing
        quantized = quantize_weight(weight, scheme) if scheme.is_symmetric else with_zero_points(weight, scheme)
        static = torch.tensor([LARGEST_INPUT / LARGEST[scheme.precision]]) if scheme.inputs == "static" else None
        factors = smoothing if scheme.has_pre_quant_scale else None
        quantized = QuantizedWeight(quantized.values, quantized.scale, quantized.zero_point, static, factors)
        del tensors[f"{name}.weight"]
        tensors |= quantized.tensors(name, scheme)
        module.weight.data = quantized.dequantized()
        if scheme.inputs:
            module.register_forward_pre_hook(round_inputs(scheme, smoothing))
    for name, _ in model.named_modules():
        if layout.has_fp8_kv_cache and name.endswith("self_attn"):
            tensors |= {f"{name}.{scale}": torch.tensor([0.02]) for scale in ("k_scale", "v_scale")}
    config = json.loads((original / "config.json").read_text())
    write_folder(folder, {**config, KEY: quantization_config(layout)}, tensors)
    return model.eval()


def run_export(folder: Path, monkeypatch: pytest.MonkeyPatch, original: Path, precision: str, *extra: str) -> None:
    """Run the export program in this process; its outputs are in `folder`/outputs."""
    monkeypatch.chdir(folder)
    flags = ["--model", str(original), "--precision", precision, "--quantized", str(folder / "quantized"), *extra]
    sizes = ["--batch", "2", "--prompt-tokens", str(PROMPT), "--cache-length", str(PROMPT + STEPS)]
    monkeypatch.setattr(sys, "argv", ["export", *flags, *sizes])
    export.main()


def largest_difference(model: nn.Module, session: IreeSession) -> float:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 250, (2, PROMPT + STEPS), generator=generator)
    lengths = torch.tensor([PROMPT, PROMPT - 3])
    got = program_logits(session, tokens, lengths, PROMPT, STEPS)
    with torch.inference_mode():
        logits = model(tokens).logits
    expected = torch.stack([row[end - 1 : end + STEPS] for row, end in zip(logits, lengths.tolist(), strict=True)])
    return float((got - expected).abs().max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_computes_with_the_stored_numbers(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: QuantizedCase
) -> None:
    scheme = case.layout.scheme
    assert scheme is not None
    model = make(original, tmp_path / "quantized", case.layout)
    flags = [f"--tp={case.tp}", f"--activations={case.activations}"]
    flags += ["--kv-precision=fp8"] if case.layout.has_fp8_kv_cache else []
    run_export(tmp_path, monkeypatch, original, scheme.precision, *flags)
    module = compile_for_cpu(tmp_path, case.tp)
    session = IreeSession(tmp_path / "outputs/config.json", module, ["local-task"] * case.tp)
    assert largest_difference(model, session) < case.tolerance
    assert_nothing_lasting_is_copied(tmp_path, case.tp)
    text = (tmp_path / "outputs/model.mlir").read_text()
    assert f"x{case.low}>" in text
    assert ("@cache." in text and "xf8E4M3FNUZ>" in text) or not case.layout.has_fp8_kv_cache
    if case.low == "i4":
        assert_weights_stay_packed(tmp_path, case.tp)
    weight = "weight_packed" if scheme.precision == "int4" else "weight"
    bits = BITS[scheme.precision]
    assert stored_bytes(tmp_path / "outputs", f"layers.0.mlp.up_proj.{weight}") == 64 * 128 * bits // 8 // case.tp


def assert_weights_stay_packed(folder: Path, tp: int) -> None:
    """On a GPU, no dispatch unpacks weights of four bits for another to read, and none when the program is loaded."""
    devices = [f"--iree-hal-target-device=hip[{rank}]" for rank in range(tp)]
    argv = ["iree-compile", "outputs/model.mlir", "-o", "flow.mlir", "--compile-to=flow", "--iree-rocm-target=gfx942"]
    done = run([*argv, *devices], folder)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = re.findall(r"func.func @(\S+)\(", (folder / "flow.mlir").read_text())
    assert [name for name in kernels if "matmul" in name]
    assert not [name for name in kernels if "elementwise" in name and "i4" in name]


def stored_bytes(outputs: Path, name: str) -> int:
    """The bytes of a weight in the first rank's archive."""
    index = iree.runtime.ParameterIndex()
    index.load(str(outputs / "model.rank0.irpa"))
    return sum(
        entry.length for key, entry in index.items() if key.startswith(f"rank0.model.{name}") and key[-1] in "td"
    )


def test_groups_that_a_split_would_cut_are_refused_with_the_module(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(original, tmp_path / "quantized", QuantizedLayout(QuantizationScheme("int4", "group", 64, inputs=None)))
    with pytest.raises(BadInput, match=r"mlp.down_proj: each device holds 32 of its 128 columns, .* group_size 16"):
        run_export(tmp_path, monkeypatch, original, "int4", "--tp", "4")


def test_a_folder_of_another_precision_is_refused(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(original, tmp_path / "quantized", QuantizedLayout(QuantizationScheme("int8", "tensor")))
    with pytest.raises(BadInput, match="holds int8 weights, but precision fp8 was asked for"):
        run_export(tmp_path, monkeypatch, original, "fp8")
    with pytest.raises(BadInput, match="no scales of an fp8 KV cache"):
        run_export(tmp_path, monkeypatch, original, "int8", "--kv-precision=fp8")


@pytest.mark.parametrize(
    "scheme", [QuantizationScheme("int4", "group", 16, False, None), QuantizationScheme("int8", "channel")], ids=str
)
def test_a_quantized_model_is_its_own_reference_as_floats(
    original: Path, tmp_path: Path, scheme: QuantizationScheme
) -> None:
    model = make(original, tmp_path / "quantized", QuantizedLayout(scheme))
    weights = load_dequantized(load_model(str(tmp_path / "quantized"), None, {})).state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


def test_a_head_of_its_own_is_kept_in_floats_where_the_config_ties_it(tmp_path: Path) -> None:
    original = make_checkpoint(tmp_path / "model", "llama", tie_word_embeddings=True)
    store_other_head(original)
    model = make(original, tmp_path / "quantized", QuantizedLayout(QuantizationScheme("int8", "channel")))
    weights = load_dequantized(load_model(str(tmp_path / "quantized"), None, {})).state_dict()
    assert torch.equal(weights["lm_head.weight"], model.get_parameter("lm_head.weight"))
    assert not torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
