"""`python -m workers.llm.quantizers.haloctl`: haloctl's own: rounding to nearest, static scales from calibration.

Weights are scaled by their largest absolute value, or with the option `clip` by the fraction of it with the least
squared error. Inputs are scaled by the largest absolute value over the calibration text, or by a percentile of each
window's. The KV cache is scaled by the largest keys, after their rotation, and values.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from workers.llm.command_line import run
from workers.llm.models.quantized_layout import LARGEST, QuantizationScheme
from workers.llm.numerics.reference import EAGER, load_weights
from workers.llm.quantizers.model_tensors import linear_modules, unquantized_tensors
from workers.llm.quantizers.packed_formats import with_minimum
from workers.llm.quantizers.quantize_request import QuantizeRequest, read_request
from workers.llm.quantizers.quantized_folder import write_quantized_model
from workers.llm.quantizers.quantized_weight import QuantizedWeight, round_to
from workers.llm.sharding.local_modules import is_attention

CLIPS = tuple(1 - step / 40 for step in range(21))  #: candidate fractions of the largest value: 1 to 0.5
LEAST = 1e-8  #: a scale is above zero, also of weights that are all zero
FP8 = LARGEST["fp8"]
INT4_STEPS = 15  #: from the least value of a group to its largest


def main() -> None:
    """Quantize the model as the command line says."""
    request = read_request("haloctl")
    quantize_model(request, "haloctl", load_weights(request.model, **EAGER).float().eval())


def quantize_model(
    request: QuantizeRequest,
    quantizer: str,
    model: Any,
    quantized: Mapping[str, QuantizedWeight] | None = None,
    **report: Any,
) -> None:
    """Quantize `model` and write it as a folder; `report` holds further entries of the report.

    Modules in `quantized` keep their values; they are quantized already, in the same scheme.
    """
    quantized = quantized or {}
    linear = linear_modules(model)
    has_zero_points = any(weight.zero_point is not None for weight in quantized.values())
    columns = [module.in_features for module in linear.values()]
    layout = request.layout(columns, zero_points="float" if has_zero_points else None)
    statistics = calibrate(request, model, linear if request.inputs == "static" else {})
    modules = {}
    if layout.scheme:
        clip = bool(request.options.get("clip"))
        for name, module in linear.items():
            weight = quantized.get(name) or quantize_weight(module.weight.data, layout.scheme, clip=clip)
            if name in statistics.inputs:
                input_scale = max(statistics.inputs[name], LEAST) / LARGEST[layout.scheme.precision]
                weight = replace(weight, input_scale=torch.tensor([input_scale]))
            modules[name] = weight
    others = {**unquantized_tensors(request, model, set(modules)), **statistics.cache_scales()}
    weights = {name: module.weight.data for name, module in linear.items()}
    windows = statistics.windows
    write_quantized_model(request, quantizer, layout, modules, others, weights, calibration_windows=windows, **report)


def quantize_weight(weight: torch.Tensor, scheme: QuantizationScheme, clip: bool = False) -> QuantizedWeight:
    """Quantize a weight [out, in] with symmetric scales, or each group from its least value to its largest."""
    rows, columns = weight.shape
    groups = columns // scheme.group_size if scheme.group_size else 1
    if scheme.has_float_zero_points:
        parts = weight.float().reshape(rows, groups, -1)
        least, most = parts.amin(-1), parts.amax(-1)
        scale = ((most - least) / INT4_STEPS).clamp(min=LEAST)
        values = ((parts - least[..., None]) / scale[..., None]).round().clamp(0, INT4_STEPS)
        return with_minimum(values.reshape(rows, columns), scale, least)
    shape = (1, 1, rows * columns) if scheme.granularity == "tensor" else (rows, groups, columns // groups)
    parts = weight.float().reshape(shape)
    largest = parts.abs().amax(-1, keepdim=True).clamp(min=LEAST)
    scale = largest / LARGEST[scheme.precision]
    if clip:
        scale = scale * best_clip(parts, scale, scheme.precision)
    values = round_to(parts / scale, scheme.precision).reshape(rows, columns)
    return QuantizedWeight(values, scale.reshape((1,) if len(scale) == 1 < rows else (rows, groups)))


def best_clip(parts: torch.Tensor, scale: torch.Tensor, precision: str) -> torch.Tensor:
    """Return the factor from CLIPS with which each scale has the least squared error."""
    best, least = torch.ones_like(scale), torch.full_like(scale, torch.inf)
    for clip in CLIPS:
        clipped = scale * clip
        error = (round_to(parts / clipped, precision).float() * clipped - parts).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, clip, best), torch.minimum(error, least)
    return best


class CalibrationStatistics:
    """Largest absolute values of each linear module's inputs, and of each attention's keys and values."""

    def __init__(self, percentile: float) -> None:
        self.inputs: dict[str, float] = {}
        self.cache: dict[str, tuple[float, float]] = {}  #: of keys and of values, by attention module
        self.windows = 0
        self._fraction = percentile / 100

    @contextmanager
    def recording_inputs(self, modules: dict[str, nn.Linear]) -> Iterator[None]:
        """Record the inputs of `modules` while the model runs."""
        hooks = [module.register_forward_pre_hook(self._recorder(name)) for name, module in modules.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def record(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            values = inputs[0].abs().flatten()
            rank = max(1, round(self._fraction * values.numel()))
            largest = values.max() if rank == values.numel() else values.kthvalue(rank).values
            self.inputs[name] = max(self.inputs.get(name, 0.0), float(largest))

        return record

    def record_cache(self, attentions: list[str], cache: Any) -> None:
        """Record the cache that a forward pass has filled, which has one layer for each attention module."""
        for name, layer in zip(attentions, cache.layers, strict=True):
            keys, values = self.cache.get(name, (0.0, 0.0))
            self.cache[name] = (max(keys, float(layer.keys.abs().max())), max(values, float(layer.values.abs().max())))

    def cache_scales(self) -> dict[str, torch.Tensor]:
        """Return the fp8 KV cache's scales by tensor name."""
        scales = {}
        for name, (keys, values) in self.cache.items():
            scales[f"{name}.k_scale"] = torch.tensor([max(keys, LEAST) / FP8])
            scales[f"{name}.v_scale"] = torch.tensor([max(values, LEAST) / FP8])
        return scales


@torch.inference_mode()
def calibrate(request: QuantizeRequest, model: Any, linear: dict[str, nn.Linear]) -> CalibrationStatistics:
    """Run the calibration text through the model, unless neither inputs nor the KV cache need scales."""
    is_percentile = request.options.get("method") == "percentile"
    statistics = CalibrationStatistics(request.options.get("percentile", 99.99) if is_percentile else 100)
    if not (linear or request.scales_kv):
        return statistics
    attentions = [name for name, module in model.named_modules() if is_attention(module)]
    with statistics.recording_inputs(linear):
        for window in request.calibration_windows():
            output = model(input_ids=window[None], use_cache=request.scales_kv)
            if request.scales_kv:
                statistics.record_cache(attentions, output.past_key_values)
            statistics.windows += 1
    return statistics


if __name__ == "__main__":
    run(main)
