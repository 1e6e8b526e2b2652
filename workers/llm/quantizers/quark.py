"""`python -m workers.llm.quantizers.quark`: AMD Quark; what it writes is brought into the layout.

Its safetensors have `weight`, `weight_scale` and `input_scale` under the same names; only what is said of them in
config.json, and the shapes of scales, are otherwise.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config.config import (
    FP8E4M3PerChannelSpec,
    FP8E4M3PerTensorSpec,
    Int8PerChannelSpec,
    Int8PerTensorSpec,
    QConfig,
    QLayerConfig,
)
from safetensors.torch import load_file

from workers.llm.program import BadInput, run
from workers.llm.quantized_layout import LEFT_ALONE
from workers.llm.quantizers.request import Request, read_request
from workers.llm.quantizers.weights import linear_modules, others_of
from workers.llm.quantizers.writing import Quantized, write
from workers.llm.reference import load_weights

CHANNELS = {"ch_axis": 0, "is_dynamic": False}
INTEGERS = {"symmetric": True, "scale_type": "float", "round_method": "half_even"}


def main() -> None:
    """Quantize as the command line says."""
    request = read_request("quark")
    torch.manual_seed(0)
    model = load_weights(request.model, dtype=torch.float32).eval()
    linear = linear_modules(model)
    layout = request.layout([module.in_features for module in linear.values()])
    weights = {name: module.weight.data.clone() for name, module in linear.items()}
    others = others_of(request, model, set(linear))
    windows = request.tokens_of_windows()
    quantizer = ModelQuantizer(config(request))
    quantized = quantizer.freeze(quantizer.quantize_model(model, list(windows[:, None])))
    with TemporaryDirectory() as scratch, torch.no_grad():
        export_safetensors(quantized, scratch, pack_method="order")
        stored = {
            name: tensor for file in Path(scratch).glob("*.safetensors") for name, tensor in load_file(file).items()
        }
    modules = {name: taken(stored, name) for name in linear}
    write(request, "quark", layout, modules, others, weights, calibration_windows=len(windows))


def config(request: Request) -> QConfig:
    """The scheme in Quark's words."""
    if request.precision == "fp8":
        inputs: Any = FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
        weight: Any = FP8E4M3PerChannelSpec(**CHANNELS) if request.granularity == "channel" else inputs
    else:
        inputs = Int8PerTensorSpec(observer_method="min_max", is_dynamic=False, **INTEGERS)
        weight = Int8PerChannelSpec(**CHANNELS, **INTEGERS) if request.granularity == "channel" else inputs
    layer = QLayerConfig(input_tensors=inputs.to_quantization_spec(), weight=weight.to_quantization_spec())
    return QConfig(global_quant_config=layer, exclude=list(LEFT_ALONE))


def taken(stored: dict[str, torch.Tensor], name: str) -> Quantized:
    """A linear module as Quark has stored it."""
    try:
        values, scale = stored[f"{name}.weight"], stored[f"{name}.weight_scale"]
        inputs = stored[f"{name}.input_scale"]
    except KeyError as missing:
        raise BadInput(f"Quark has stored no {missing.args[0]}") from None
    shape = (1,) if scale.numel() == 1 else (len(values), 1)
    return Quantized(values, scale.reshape(shape), None, inputs.reshape(1))


if __name__ == "__main__":
    run(main)
