"""Quantized weights as tensors of the layout, and the folder that holds them."""

import json
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from workers.llm.program import naming
from workers.llm.quantized_layout import KEY, LARGEST, PER_WORD, QuantizedLayout, Scheme, quantization_config
from workers.llm.quantizers.request import Request

OUTPUTS = Path("outputs")
INT4_OFFSET = 8
SHARD_BYTES = 4 << 30


@dataclass(frozen=True)
class Quantized:
    """One linear module's weight [out, in] in low precision."""

    values: torch.Tensor  #: float8_e4m3fn, or int8; of int4 from -8 to 7
    scale: torch.Tensor  #: [1], [out, 1] or [out, groups]
    zero_point: torch.Tensor | None = None  #: of int4: [out, groups], int8 from -8 to 7, or any in f32
    input_scale: torch.Tensor | None = None  #: [1]
    pre_quant_scale: torch.Tensor | None = None  #: [1, in]

    def symmetric(self) -> "Quantized":
        """The same without zero points, which are all zero."""
        return Quantized(self.values, self.scale, None, self.input_scale)

    def tensors(self, name: str, scheme: Scheme) -> dict[str, torch.Tensor]:
        """What a safetensors file has of it."""
        found = {f"{name}.weight_scale": self.scale.float().contiguous()}
        if scheme.precision == "int4":
            found[f"{name}.weight_packed"] = pack(self.values)
            found[f"{name}.weight_shape"] = torch.tensor(self.values.shape)
        else:
            found[f"{name}.weight"] = self.values.contiguous()
        if scheme.has_float_zero_points:
            zeros = torch.zeros_like(self.scale) if self.zero_point is None else self.zero_point
            found[f"{name}.weight_zero_point"] = zeros.float().contiguous()
        elif self.zero_point is not None:
            found[f"{name}.weight_zero_point"] = pack(self.zero_point.T).T.contiguous()
        if self.input_scale is not None:
            found[f"{name}.input_scale"] = self.input_scale.float().reshape(1)
        if self.pre_quant_scale is not None:
            found[f"{name}.pre_quant_scale"] = self.pre_quant_scale.float().contiguous()
        return found

    def error(self, weight: torch.Tensor) -> float:
        """Root of the mean squared difference from the weight [out, in] that it is of, relative to the weight's."""
        return float((self.dequantized() - weight).norm() / weight.norm().clamp(min=1e-12))

    def dequantized(self) -> torch.Tensor:
        """The weight [out, in] that it stands for, of inputs as they are, in f32."""
        rows, columns = self.values.shape
        groups = self.scale.shape[-1] if self.scale.dim() == 2 else 1
        values = self.values.float().view(rows, groups, columns // groups)
        if self.zero_point is not None:
            values = values - self.zero_point.float()[..., None]
        scale = self.scale.float()[..., None] if self.scale.dim() == 2 else self.scale.float()
        weight = (values * scale).view(rows, columns)
        return weight if self.pre_quant_scale is None else weight * self.pre_quant_scale


def pack(values: torch.Tensor) -> torch.Tensor:
    """int4 values [rows, columns] from -8 to 7 as int32 [rows, columns / 8], the first in the lowest four bits."""
    words = (values.to(torch.int64) + INT4_OFFSET).view(values.shape[0], -1, PER_WORD)
    shifts = torch.arange(0, 4 * PER_WORD, 4)
    return _as_int32((words << shifts).sum(-1))


def _as_int32(words: torch.Tensor) -> torch.Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def round_to(values: torch.Tensor, precision: str) -> torch.Tensor:
    """Scaled values in the type that a precision is stored in."""
    if precision == "fp8":
        return values.clamp(-LARGEST["fp8"], LARGEST["fp8"]).to(torch.float8_e4m3fn)
    least = -INT4_OFFSET if precision == "int4" else -LARGEST[precision]
    return values.round().clamp(least, LARGEST[precision]).to(torch.int8)


def write(
    request: Request,
    maker: str,
    layout: QuantizedLayout,
    modules: Mapping[str, Quantized],
    others: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    **more: Any,
) -> None:
    """Write the layout and a report into outputs/: quantized modules by name, other tensors as the model has them.

    `weights` are the original ones of the modules, for the errors in the report; `more` goes into the report.
    """
    tensors = {name: tensor.contiguous() for name, tensor in others.items()}
    for name, module in modules.items():
        assert layout.scheme is not None
        tensors |= module.tensors(name, layout.scheme)
    config = {**request.model.config.to_dict(), KEY: quantization_config(layout)}
    size = write_folder(OUTPUTS, config, tensors)
    errors = {name: module.error(weights[name].float()) for name, module in modules.items()}
    write_report(request, maker, layout, tensors, weight_bytes=size, relative_errors=errors, **more)


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> int:
    """Write config.json and the tensors, in files of 4 GiB and an index where there is more; returns their bytes."""
    folder.mkdir(exist_ok=True)
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in sorted(tensors.items()):
        if shards[-1] and sum(map(_bytes, shards[-1].values())) + _bytes(tensor) > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = tensor
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{at:05d}-of-{len(shards):05d}.safetensors" for at in range(1, len(shards) + 1)]
        places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(map(_bytes, tensors.values()))}, "weight_map": places}
        _write_json(folder / "model.safetensors.index.json", index)
    for file, shard in zip(names, shards, strict=True):
        with naming(folder / file):
            save_file(shard, folder / file, metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    return sum((folder / file).stat().st_size for file in names)


def write_report(
    request: Request, maker: str, layout: QuantizedLayout, tensors: Mapping[str, torch.Tensor], **more: Any
) -> None:
    """Write quantize.json: what was quantized, the scales' ranges, how long it took."""
    scheme = layout.scheme
    ranges = {
        kind: [float(min(map(torch.min, found))), float(max(map(torch.max, found)))]
        for kind in ("weight_scale", "input_scale", "k_scale", "v_scale")
        if (found := [tensor.float() for name, tensor in tensors.items() if name.endswith(f".{kind}")])
    }
    report = {
        "maker": maker,
        "precision": scheme.precision if scheme else None,
        "granularity": scheme.granularity if scheme else None,
        "group_size": scheme.group_size if scheme else None,
        "inputs": scheme.inputs if scheme else None,
        "quantized": sorted(name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")),
        "left": list(layout.ignored),
        "scales": ranges,
        "quantize_s": round(time.monotonic() - request.started, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **more,
    }
    _write_json(OUTPUTS / "quantize.json", report)
    print(f"{maker}: {len(report['quantized'])} modules in {report['quantize_s']} s", flush=True)


def _write_json(path: Path, value: Any) -> None:
    with naming(path):
        path.write_text(json.dumps(value, indent=1, default=str))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
