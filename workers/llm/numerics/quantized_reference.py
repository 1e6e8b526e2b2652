"""The reference of a program in low precision: the same quantized weights in float32, rounded where it rounds.

Inputs of linear modules and the KV cache are rounded to the program's grid, and nothing else is rounded. What is left
between the two is noise, except where the program computes with other numbers than the folder holds.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import LARGEST, QuantizedLayout
from workers.llm.quantized.dequantized import Stored, load_dequantized, read_tensor
from workers.llm.sharding.local_modules import is_attention
from workers.llm.weights.checkpoint import read_checkpoint

SMALLEST_SCALE = 1e-6  #: of a token's inputs that are all zeros
INT8_LEAST = -128.0

Scales = tuple[float, float]  #: of the keys and the values of one attention module


class QuantizedReference:
    """The quantized model in float32. Each linear module's output has a factor, 1, whose gradient is its scale's."""

    def __init__(self, model: LocalModel, layout: QuantizedLayout) -> None:
        assert model.folder is not None
        stored = read_checkpoint(model.folder)
        self._model = load_dequantized(model).eval().requires_grad_(False)
        linear = {name: part for name, part in self._model.named_modules() if isinstance(part, nn.Linear)}
        self.factors = {name: torch.ones(1, requires_grad=True) for name in linear}
        for name, module in linear.items():
            if f"{name}.weight_scale" in stored and layout.scheme and layout.scheme.inputs:
                module.register_forward_pre_hook(_round_inputs(stored, name, layout.scheme.precision))
            module.register_forward_hook(_multiply(self.factors[name]))
        self._cache_scales = self._read_cache_scales(stored) if layout.has_fp8_kv_cache else []

    def _read_cache_scales(self, stored: Stored) -> list[Scales]:
        names = [name for name, module in self._model.named_modules() if is_attention(module)]
        return [
            (float(read_tensor(stored[f"{name}.k_scale"])), float(read_tensor(stored[f"{name}.v_scale"])))
            for name in names
        ]

    def logits(self, prompt: torch.Tensor, continuation: torch.Tensor) -> torch.Tensor:
        """Return the logits [N + 1, V] after the prompt [T] and after each token of its continuation [N]."""
        cache = RoundedCache(self._cache_scales)
        first = self._model(input_ids=prompt[None], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        rest = self._model(input_ids=continuation[None], past_key_values=cache, use_cache=True).logits
        return torch.cat([first, rest], dim=1)[0]


class RoundedCache(DynamicCache):  # type: ignore[misc]
    """A cache that rounds keys and values to fp8, if they have scales; a prompt attends to its own unrounded."""

    def __init__(self, scales: list[Scales]) -> None:
        super().__init__()
        self._scales = scales

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values; return those to attend to."""
        is_prompt = self.get_seq_length(layer_idx) == 0
        rounded = key_states, value_states
        if self._scales:
            key_scale, value_scale = self._scales[layer_idx]
            rounded = _round(key_states, key_scale, "fp8"), _round(value_states, value_scale, "fp8")
        stored: tuple[torch.Tensor, torch.Tensor] = super().update(*rounded, layer_idx, *args, **kwargs)
        return (key_states, value_states) if is_prompt else stored


def _round_inputs(stored: Stored, module: str, precision: str) -> Callable[..., torch.Tensor]:
    """Return a hook that gives a linear module its inputs as they are after rounding."""
    smoothing, static = (
        read_tensor(stored[name]).float() if name in stored else None
        for name in (f"{module}.pre_quant_scale", f"{module}.input_scale")
    )

    def hook(_: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        x = inputs[0] if smoothing is None else inputs[0] * smoothing
        scale = static
        if scale is None:
            scale = (x.detach().abs().amax(-1, keepdim=True) / LARGEST[precision]).clamp(min=SMALLEST_SCALE)
        rounded = _round(x, scale, precision)
        return rounded if smoothing is None else rounded / smoothing

    return hook


def _multiply(factor: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda _module, _inputs, output: output * factor


def _round(values: torch.Tensor, scale: torch.Tensor | float, precision: str) -> torch.Tensor:
    """Round to multiples of `scale` that the precision has; gradients pass as if nothing were rounded."""
    scaled, largest = values.detach() / scale, LARGEST[precision]
    if precision == "fp8":
        rounded = scaled.clamp(-largest, largest).to(torch.float8_e4m3fn).float()
    else:
        rounded = scaled.round().clamp(INT8_LEAST, largest)
    return values + (rounded * scale - values.detach())
