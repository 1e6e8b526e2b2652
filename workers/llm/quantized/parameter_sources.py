"""Reading a quantized model folder's tensors as a program's parameters: checked, and converted to its dtypes."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from workers.llm.command_line import BadInput
from workers.llm.models.quantized_layout import PER_WORD, QuantizedLayout, read_layout
from workers.llm.quantized.low_bit_modules import FP8_SCALE, QuantizedLinear
from workers.llm.quantized.low_bit_values import e4m3fn_to_fnuz, unpack_int4
from workers.llm.weights.checkpoint import FLOATS, StoredTensor

KV_SCALES = ("k_scale", "v_scale")


@dataclass(frozen=True)
class ConvertedTensor:
    """A stored tensor whose rows are converted as they are read."""

    stored: StoredTensor
    convert: Callable[[torch.Tensor], torch.Tensor]
    factor: int = 1  #: rows that each stored row becomes

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield converted chunks of rows, each with the number of its first row."""
        for first, rows in self.stored.rows(chunk_bytes):
            try:
                yield first * self.factor, self.convert(rows)
            except ValueError as problem:
                raise BadInput(f"{self.stored.file}: tensor {self.stored.name} is {problem}") from None


def read_folder_layout(folder: Path) -> QuantizedLayout | None:
    """Return the layout of a model folder; None when it is not quantized. Raises BadInput for an unreadable config."""
    path = folder / "config.json"
    try:
        return read_layout(json.loads(path.read_text()), path)
    except (OSError, ValueError) as problem:
        raise BadInput(f"{path} cannot be read: {problem}") from None


def quantized_sources(
    model: nn.Module, stored: Mapping[str, StoredTensor], layout: QuantizedLayout, fp8: str, folder: Path
) -> dict[str, ConvertedTensor]:
    """Return the source of every parameter that quantization has added to `model`, by full name.

    `model` went through `quantize_modules`; `fp8` is "fn" or "fnuz".
    """
    sources = {}
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear):
            for leaf in module.quantized_names():
                parameter = f"{name}.{leaf}"
                sources[parameter] = _module_source(parameter, module, stored, layout, fp8, folder)
        for scale in KV_SCALES if layout.has_fp8_kv_cache else ():
            if scale in module._parameters:
                tensor = _find(stored, f"{name}.{scale}", None, (1,), folder)
                sources[f"{name}.{scale}"] = _scale(tensor, FP8_SCALE[fp8])
    return sources


def _module_source(
    name: str,
    module: QuantizedLinear,
    stored: Mapping[str, StoredTensor],
    layout: QuantizedLayout,
    fp8: str,
    folder: Path,
) -> ConvertedTensor:
    module_name, _, leaf = name.rpartition(".")
    scheme = layout.scheme_of(module_name)
    assert scheme is not None
    kind, shape = scheme.tensors(module.rows, module.columns)[leaf]
    tensor = _find(stored, name, kind, shape, folder)
    if leaf == "weight":
        return ConvertedTensor(tensor, e4m3fn_to_fnuz if kind == "F8_E4M3" and fp8 == "fnuz" else lambda rows: rows)
    if leaf == "weight_packed":  # as words and as bytes, the first value is in the low bits of the first byte
        return ConvertedTensor(tensor, lambda words: words.view(torch.uint8))
    if leaf == "weight_zero_point" and not scheme.has_float_zero_points:
        return ConvertedTensor(tensor, lambda words: unpack_int4(words.t()).t(), PER_WORD)
    is_of_fp8 = scheme.precision == "fp8" and leaf != "pre_quant_scale"
    return _scale(tensor, FP8_SCALE[fp8] if is_of_fp8 else 1.0)


def _find(
    stored: Mapping[str, StoredTensor], name: str, kind: str | None, shape: tuple[int, ...], folder: Path
) -> StoredTensor:
    """Return a stored tensor after checking dtype and shape; of a scale only the number of values counts."""
    tensor = stored.get(name)
    if tensor is None:
        raise BadInput(
            f"{folder}: no safetensors file holds the tensor {name}, which its quantization_config calls for"
        )
    known = (kind,) if kind else tuple(FLOATS)
    if tensor.dtype not in known:
        raise BadInput(f"{tensor.file}: tensor {name} is of type {tensor.dtype}, not {' or '.join(known)}")
    is_alike = tensor.shape == shape if kind else math.prod(tensor.shape) == math.prod(shape)
    if not is_alike:
        shapes = f"{list(tensor.shape)}, the quantization_config calls for {list(shape)}"
        raise BadInput(f"{tensor.file}: tensor {name} has shape {shapes}")
    return tensor


def _scale(tensor: StoredTensor, factor: float) -> ConvertedTensor:
    return ConvertedTensor(tensor, lambda rows: rows.float() * factor)
