"""The tensors of a quantized model folder as a program's parameters: checked, and brought into its types on the way."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from workers.llm.checkpoint import FLOATS, StoredTensor
from workers.llm.program import BadInput
from workers.llm.quantized_layout import PER_WORD, QuantizedLayout, read_layout
from workers.llm.quantized_modules import FP8_SCALE, QuantizedLinear
from workers.llm.quantized_tensors import fnuz_of, unpack_int4

KV_SCALES = ("k_scale", "v_scale")


@dataclass(frozen=True)
class Converted:
    """A stored tensor whose rows are changed as they are read; each becomes `factor` rows."""

    stored: StoredTensor
    convert: Callable[[torch.Tensor], torch.Tensor]
    factor: int = 1

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """As `StoredTensor.rows`."""
        for first, rows in self.stored.rows(chunk_bytes):
            try:
                yield first * self.factor, self.convert(rows)
            except ValueError as problem:
                raise BadInput(f"{self.stored.file}: tensor {self.stored.name} is {problem}") from None


def read_folder_layout(folder: Path) -> QuantizedLayout | None:
    """What a model folder says of quantization."""
    path = folder / "config.json"
    try:
        return read_layout(json.loads(path.read_text()), path)
    except (OSError, ValueError) as problem:
        raise BadInput(f"{path} cannot be read: {problem}") from None


def quantized_sources(
    model: nn.Module, stored: Mapping[str, StoredTensor], layout: QuantizedLayout, fp8: str, folder: Path
) -> dict[str, Converted]:
    """The source of every parameter of `model` that is there because of quantization, by full name.

    `model` went through `quantize_modules`; `fp8` is "fn" or "fnuz".
    """
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear):
            for parameter in module.quantized_names():
                found[f"{name}.{parameter}"] = _module_source(
                    f"{name}.{parameter}", module, stored, layout, fp8, folder
                )
        for scale in KV_SCALES if layout.has_fp8_kv_cache else ():
            if scale in module._parameters:
                found[f"{name}.{scale}"] = _scale(_take(stored, f"{name}.{scale}", None, (1,), folder), FP8_SCALE[fp8])
    return found


def _module_source(
    name: str,
    module: QuantizedLinear,
    stored: Mapping[str, StoredTensor],
    layout: QuantizedLayout,
    fp8: str,
    folder: Path,
) -> Converted:
    module_name, _, leaf = name.rpartition(".")
    scheme = layout.scheme_of(module_name)
    assert scheme is not None
    kind, shape = scheme.tensors(module.rows, module.columns)[leaf]
    tensor = _take(stored, name, kind, shape, folder)
    if leaf == "weight":
        return Converted(tensor, fnuz_of if kind == "F8_E4M3" and fp8 == "fnuz" else _as_it_is)
    if leaf == "weight_packed":
        return Converted(tensor, _bytes_of_words)
    if leaf == "weight_zero_point" and not scheme.has_float_zero_points:
        return Converted(tensor, _unpacked_rows, PER_WORD)
    is_of_fp8 = scheme.precision == "fp8" and leaf != "pre_quant_scale"
    return _scale(tensor, FP8_SCALE[fp8] if is_of_fp8 else 1.0)


def _take(
    stored: Mapping[str, StoredTensor], name: str, kind: str | None, shape: tuple[int, ...], folder: Path
) -> StoredTensor:
    """The stored tensor; of scales only the number of values counts."""
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


def _scale(tensor: StoredTensor, factor: float) -> Converted:
    return Converted(tensor, lambda rows: rows.float() * factor)


def _as_it_is(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _bytes_of_words(words: torch.Tensor) -> torch.Tensor:
    """The first of the eight is in the low bits of the first byte, in either form."""
    return words.view(torch.uint8)


def _unpacked_rows(words: torch.Tensor) -> torch.Tensor:
    return unpack_int4(words.t()).t()
