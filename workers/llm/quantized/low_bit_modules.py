"""Linear modules in 8 and 4 bits as a program computes them; they replace those of a meta model.

fp8 and int8 multiply in the matrix units' own types: inputs are rounded to 8 bits too, products are summed in f32 or
i32, and one factor scales the sum. int4 applies to weights alone: the custom op `haloctl::int4_linear` reads them
packed and multiplies in the dtype of the inputs.
"""

import torch
from torch import nn

from workers.llm.models.quantized_layout import LEFT_ALONE, QuantizationScheme, QuantizedLayout
from workers.llm.quantized.int4_linear import int4_linear
from workers.llm.sharding.local_modules import is_attention

#: the kinds of fp8 that matrix units support, by the targets' names
FP8 = {"fn": torch.float8_e4m3fn, "fnuz": torch.float8_e4m3fnuz}
#: the bits of an e4m3fn value mean half as much in e4m3fnuz: scales are doubled
FP8_SCALE = {"fn": 1.0, "fnuz": 2.0}
#: the largest stored value, 448, in each kind; e4m3fnuz has a 240 too, which would be another number than 480
FP8_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 224.0}
SMALLEST_SCALE = 1e-6  #: for a token that is all zeros


class QuantizedLinear(nn.Module):
    """A linear module with a low-bit weight and, except for int4, low-bit inputs; everything else is in `dtype`."""

    weight: torch.Tensor
    weight_packed: torch.Tensor
    weight_scale: torch.Tensor
    input_scale: torch.Tensor
    pre_quant_scale: torch.Tensor
    bias: torch.Tensor

    def __init__(self, original: nn.Linear, scheme: QuantizationScheme, fp8: torch.dtype, dtype: torch.dtype) -> None:
        super().__init__()
        self.precision, self.granularity, self.inputs = scheme.precision, scheme.granularity, scheme.inputs or ""
        self.rows, self.columns = original.weight.shape
        rows, columns = self.rows, self.columns
        groups = columns // scheme.group_size if scheme.group_size else 1
        if scheme.precision == "int4":
            self._add_parameter("weight_packed", (rows, columns // 2), torch.uint8)
            self._add_parameter("weight_scale", (rows, groups), dtype)
            if not scheme.is_symmetric:
                self._add_parameter(
                    "weight_zero_point", (rows, groups), dtype if scheme.has_float_zero_points else torch.int8
                )
        else:
            self._add_parameter("weight", (rows, columns), fp8 if scheme.precision == "fp8" else torch.int8)
            self._add_parameter("weight_scale", (1,) if scheme.granularity == "tensor" else (rows, 1), torch.float32)
        if scheme.inputs == "static":
            self._add_parameter("input_scale", (1,), torch.float32)
        if scheme.has_pre_quant_scale:
            self._add_parameter("pre_quant_scale", (1, columns), torch.float32)
        if original.bias is not None:
            self._add_parameter("bias", (rows,), dtype)

    def _add_parameter(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))

    def quantized_names(self) -> list[str]:
        """Return the names of its parameters except the bias, which is unchanged."""
        return [name for name in self._parameters if name != "bias"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product `[..., rows]` with the rounded inputs `[..., columns]`."""
        flat = x.reshape(-1, x.shape[-1])
        if "pre_quant_scale" in self._parameters:
            flat = (flat.float() * self.pre_quant_scale).to(x.dtype)
        if self.precision == "int4":
            zero_point = self._parameters.get("weight_zero_point")
            product = int4_linear(flat, self.weight_packed, self.weight_scale, zero_point)
        else:
            product = self._multiply_8_bit(flat.float())
        if "bias" in self._parameters:
            product = product + self.bias.float()
        return product.to(x.dtype).reshape(*x.shape[:-1], -1)

    def _multiply_8_bit(self, x: torch.Tensor) -> torch.Tensor:
        weight, scale = self.weight, self.weight_scale.reshape(-1)
        largest = FP8_LARGEST.get(weight.dtype, 127.0)
        if self.inputs == "static":
            input_scale = self.input_scale
        else:
            input_scale = (x.abs().amax(-1, keepdim=True) / largest).clamp(min=SMALLEST_SCALE)
        scaled = x / input_scale
        if weight.dtype == torch.int8:
            rounded = scaled.round().clamp(-128, 127).to(torch.int8)
            product = torch._int_mm(rounded, weight.t()).float()
        else:
            rounded = scaled.clamp(-largest, largest).to(weight.dtype)
            product = torch.mm(rounded.float(), weight.float().t())
        return product * (input_scale * scale)


def linear_widths(model: nn.Module) -> list[int]:
    """Return the distinct widths of the weights that are quantized by default."""
    named = model.named_modules()
    return sorted({part.in_features for name, part in named if isinstance(part, nn.Linear) and name not in LEFT_ALONE})


def quantize_modules(model: nn.Module, layout: QuantizedLayout, fp8: torch.dtype, dtype: torch.dtype) -> None:
    """Replace `model`'s linear modules with quantized ones, and give attention modules the scales of an fp8 cache."""
    for name, module in list(model.named_modules()):
        scheme = layout.scheme_of(name) if isinstance(module, nn.Linear) else None
        if scheme:
            model.set_submodule(name, QuantizedLinear(module, scheme, fp8, dtype))
        if layout.has_fp8_kv_cache and is_attention(module):
            for scale in ("k_scale", "v_scale"):
                setattr(module, scale, nn.Parameter(torch.empty(1), requires_grad=False))


def to_cache(new: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return new keys or values in the dtype of the cache; `scale` is None in an unquantized one."""
    if scale is None:
        return new
    largest = FP8_LARGEST[dtype]
    return (new.float() / scale).clamp(-largest, largest).to(dtype)


def from_cache(stored: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return keys or values of the cache in `dtype`."""
    return stored if scale is None else (stored.float() * scale).to(dtype)
