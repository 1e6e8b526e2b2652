"""`python -m workers.llm.quantizers.quark`: AMD Quark, converted into the layout.

Its safetensors hold `weight`, `weight_scale` and `input_scale` under the same names. Only the description in
config.json and the shapes of the scales differ.
"""

from collections.abc import Mapping
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

from workers.llm.command_line import BadInput, run
from workers.llm.models.quantized_layout import LEFT_ALONE
from workers.llm.numerics.reference import load_weights
from workers.llm.quantizers.model_tensors import linear_modules, read_tensors, unquantized_tensors
from workers.llm.quantizers.quantize_request import QuantizeRequest, read_request
from workers.llm.quantizers.quantized_folder import write_quantized_model
from workers.llm.quantizers.quantized_weight import QuantizedWeight

CHANNELS = {"ch_axis": 0, "is_dynamic": False}
INTEGERS = {"symmetric": True, "scale_type": "float", "round_method": "half_even"}


def main() -> None:
    """Quantize the model as the command line says."""
    request = read_request("quark")
    torch.manual_seed(0)
    model = load_weights(request.model, dtype=torch.float32).eval()
    linear = linear_modules(model)
    layout = request.layout([module.in_features for module in linear.values()])
    weights = {name: module.weight.data.clone() for name, module in linear.items()}
    others = unquantized_tensors(request, model, set(linear))
    windows = request.calibration_windows()
    quantizer = ModelQuantizer(quantization_settings(request))
    quantized = quantizer.freeze(quantizer.quantize_model(model, list(windows[:, None])))
    with TemporaryDirectory() as scratch, torch.no_grad():
        export_safetensors(quantized, scratch, pack_method="order")
        stored = read_tensors(Path(scratch))
    modules = {name: read_module(stored, name) for name in linear}
    write_quantized_model(request, "quark", layout, modules, others, weights, calibration_windows=len(windows))


def quantization_settings(request: QuantizeRequest) -> QConfig:
    """Return Quark's configuration."""
    if request.precision == "fp8":
        inputs: Any = FP8E4M3PerTensorSpec(observer_method="min_max", is_dynamic=False)
        weight: Any = FP8E4M3PerChannelSpec(**CHANNELS) if request.granularity == "channel" else inputs
    else:
        inputs = Int8PerTensorSpec(observer_method="min_max", is_dynamic=False, **INTEGERS)
        weight = Int8PerChannelSpec(**CHANNELS, **INTEGERS) if request.granularity == "channel" else inputs
    layer = QLayerConfig(input_tensors=inputs.to_quantization_spec(), weight=weight.to_quantization_spec())
    return QConfig(global_quant_config=layer, exclude=list(LEFT_ALONE))


def read_module(stored: Mapping[str, torch.Tensor], name: str) -> QuantizedWeight:
    """Return a linear module as Quark stored it. Raises BadInput when one of its tensors is missing."""
    try:
        values, scale = stored[f"{name}.weight"], stored[f"{name}.weight_scale"]
        input_scale = stored[f"{name}.input_scale"]
    except KeyError as missing:
        raise BadInput(f"Quark has stored no {missing.args[0]}") from None
    shape = (1,) if scale.numel() == 1 else (len(values), 1)
    return QuantizedWeight(values, scale.reshape(shape), None, input_scale.reshape(1))


if __name__ == "__main__":
    run(main, has_children=True)
