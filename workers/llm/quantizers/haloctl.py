"""`python -m workers.llm.quantizers.haloctl`: haloctl's own: rounding to the nearest, static scales from calibration.

Weights are scaled by their largest absolute value, or with the option `clip` by the fraction of it that has the least
squared error. Inputs are scaled by the largest absolute value that the calibration text makes, or a percentile of each
window's. The KV cache is scaled by the largest keys, after their rotation, and values.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from workers.llm.program import run
from workers.llm.quantized_layout import LARGEST, Scheme
from workers.llm.quantizers.packed import with_minimum
from workers.llm.quantizers.request import Request, read_request
from workers.llm.quantizers.weights import linear_modules, others_of
from workers.llm.quantizers.writing import Quantized, round_to, write
from workers.llm.reference import load_weights

CLIPS = tuple(1 - step / 40 for step in range(21))  #: fractions of the largest value that are tried: 1 to 0.5
LEAST = 1e-8  #: a scale is above zero, also of weights that are all zero
FP8 = LARGEST["fp8"]
INT4_STEPS = 15  #: from the least value of a group to its largest


def main() -> None:
    """Quantize as the command line says."""
    request = read_request("haloctl")
    make(request, "haloctl", load_weights(request.model, attn_implementation="eager").float().eval())


def make(request: Request, maker: str, model: Any, kept: Mapping[str, Quantized] | None = None, **more: Any) -> None:
    """Quantize a model and write the layout; modules in `kept` are quantized already, in the same scheme."""
    kept = kept or {}
    linear = linear_modules(model)
    has_zeros = any(one.zero_point is not None for one in kept.values())
    columns = [module.in_features for module in linear.values()]
    layout = request.layout(columns, zero_points="float" if has_zeros else None)
    statistics = calibrate(request, model, linear if request.inputs == "static" else {})
    modules = {}
    if layout.scheme:
        for name, module in linear.items():
            clip = bool(request.options.get("clip"))
            modules[name] = kept.get(name) or quantize(module.weight.data, layout.scheme, clip=clip)
            if name in statistics.inputs:
                modules[name] = with_input_scale(modules[name], statistics.inputs[name], layout.scheme.precision)
    others = others_of(request, model, set(modules))
    for name, (keys, values) in statistics.cache.items():
        others[f"{name}.k_scale"] = torch.tensor([max(keys, LEAST) / FP8])
        others[f"{name}.v_scale"] = torch.tensor([max(values, LEAST) / FP8])
    weights = {name: module.weight.data for name, module in linear.items()}
    write(request, maker, layout, modules, others, weights, calibration_windows=statistics.windows, **more)


def quantize(weight: torch.Tensor, scheme: Scheme, clip: bool = False) -> Quantized:
    """A weight [out, in] with symmetric scales, or groups from their least value to their largest."""
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
    values = round_to(parts / scale, scheme.precision)
    return Quantized(values.reshape(rows, columns), scale.reshape((1,) if len(scale) == 1 < rows else (rows, groups)))


def best_clip(parts: torch.Tensor, scale: torch.Tensor, precision: str) -> torch.Tensor:
    """By which factor each scale has the least squared error."""
    best, least = torch.ones_like(scale), torch.full_like(scale, torch.inf)
    for clip in CLIPS:
        tried = scale * clip
        error = (round_to(parts / tried, precision).float() * tried - parts).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, clip, best), torch.minimum(error, least)
    return best


def with_input_scale(module: Quantized, largest: float, precision: str) -> Quantized:
    """The same with a static scale for its inputs."""
    scale = torch.tensor([max(largest, LEAST) / LARGEST[precision]])
    return Quantized(module.values, module.scale, module.zero_point, scale)


class Statistics:
    """What the calibration text makes: of each linear module's inputs, and of the keys and values of each attention."""

    def __init__(self, percentile: float) -> None:
        self.inputs: dict[str, float] = {}
        self.cache: dict[str, tuple[float, float]] = {}
        self.windows = 0
        self._fraction = percentile / 100

    @contextmanager
    def watching(self, modules: dict[str, nn.Linear]) -> Iterator[None]:
        """See the inputs of modules while the model runs."""
        hooks = [module.register_forward_pre_hook(self._see(name)) for name, module in modules.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _see(self, name: str) -> Any:
        def see(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            found = inputs[0].abs().flatten()
            rank = max(1, round(self._fraction * found.numel()))
            largest = found.max() if rank == found.numel() else found.kthvalue(rank).values
            self.inputs[name] = max(self.inputs.get(name, 0.0), float(largest))

        return see

    def see_cache(self, attentions: list[str], cache: Any) -> None:
        """See what a forward pass has left in the cache, a layer for each attention."""
        for name, layer in zip(attentions, cache.layers, strict=True):
            keys, values = self.cache.get(name, (0.0, 0.0))
            self.cache[name] = (max(keys, float(layer.keys.abs().max())), max(values, float(layer.values.abs().max())))


@torch.inference_mode()
def calibrate(request: Request, model: Any, linear: dict[str, nn.Linear]) -> Statistics:
    """Run the calibration text through the model, unless nothing is to be learnt from it."""
    is_percentile = request.options.get("method") == "percentile"
    statistics = Statistics(request.options.get("percentile", 99.99) if is_percentile else 100)
    if not (linear or request.scales_kv):
        return statistics
    attentions = [name for name, module in model.named_modules() if name.endswith(".self_attn")]
    with statistics.watching(linear):
        for window in request.tokens_of_windows():
            output = model(input_ids=window[None], use_cache=request.scales_kv)
            if request.scales_kv:
                statistics.see_cache(attentions, output.past_key_values)
            statistics.windows += 1
    return statistics


if __name__ == "__main__":
    run(main)
