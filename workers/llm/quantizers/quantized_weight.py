"""One linear module's weight in low precision, and its tensors in the layout."""

from dataclasses import dataclass, replace

import torch

from workers.llm.models.quantized_layout import INT4_OFFSET, LARGEST, PER_WORD, QuantizationScheme


@dataclass(frozen=True)
class QuantizedWeight:
    """One linear module's weight [out, in] in low precision."""

    values: torch.Tensor  #: float8_e4m3fn, or int8; int4 values are int8 from -8 to 7
    scale: torch.Tensor  #: [1], [out, 1] or [out, groups]
    zero_point: torch.Tensor | None = None  #: int4 only: [out, groups], int8 from -8 to 7, or unrounded in f32
    input_scale: torch.Tensor | None = None  #: [1]
    pre_quant_scale: torch.Tensor | None = None  #: [1, in]

    def symmetric(self) -> "QuantizedWeight":
        """Return the weight without its zero points, which must all be zero."""
        return replace(self, zero_point=None)

    def tensors(self, name: str, scheme: QuantizationScheme) -> dict[str, torch.Tensor]:
        """Return the tensors that the layout stores for the module `name`."""
        tensors = {f"{name}.weight_scale": self.scale.float().contiguous()}
        if scheme.precision == "int4":
            tensors[f"{name}.weight_packed"] = pack_int4(self.values)
            tensors[f"{name}.weight_shape"] = torch.tensor(self.values.shape)
        else:
            tensors[f"{name}.weight"] = self.values.contiguous()
        if scheme.has_float_zero_points:
            zeros = torch.zeros_like(self.scale) if self.zero_point is None else self.zero_point
            tensors[f"{name}.weight_zero_point"] = zeros.float().contiguous()
        elif self.zero_point is not None:
            tensors[f"{name}.weight_zero_point"] = pack_int4(self.zero_point.T).T.contiguous()
        if self.input_scale is not None:
            tensors[f"{name}.input_scale"] = self.input_scale.float().reshape(1)
        if self.pre_quant_scale is not None:
            tensors[f"{name}.pre_quant_scale"] = self.pre_quant_scale.float().contiguous()
        return tensors

    def error(self, weight: torch.Tensor) -> float:
        """Return the root mean square difference from the original weight [out, in], relative to that weight's."""
        return float((self.dequantized() - weight).norm() / weight.norm().clamp(min=1e-12))

    def dequantized(self) -> torch.Tensor:
        """Return the f32 weight [out, in] that the values stand for, as applied to inputs before `pre_quant_scale`."""
        rows, columns = self.values.shape
        groups = self.scale.shape[-1] if self.scale.dim() == 2 else 1
        values = self.values.float().view(rows, groups, columns // groups)
        if self.zero_point is not None:
            values = values - self.zero_point.float()[..., None]
        scale = self.scale.float()[..., None] if self.scale.dim() == 2 else self.scale.float()
        weight = (values * scale).view(rows, columns)
        return weight if self.pre_quant_scale is None else weight * self.pre_quant_scale


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """Pack values -8 to 7 [rows, columns] into int32 [rows, columns / 8], the first in the lowest four bits."""
    words = (values.to(torch.int64) + INT4_OFFSET).view(values.shape[0], -1, PER_WORD)
    words = (words << torch.arange(0, 4 * PER_WORD, 4)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def round_to(values: torch.Tensor, precision: str) -> torch.Tensor:
    """Round scaled values to the type that stores `precision`: float8_e4m3fn, or int8 for int8 and int4."""
    if precision == "fp8":
        return values.clamp(-LARGEST["fp8"], LARGEST["fp8"]).to(torch.float8_e4m3fn)
    least = -INT4_OFFSET if precision == "int4" else -LARGEST[precision]
    return values.round().clamp(least, LARGEST[precision]).to(torch.int8)
