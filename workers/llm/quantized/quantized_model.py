"""The low-bit layout of an exported model: its folder's, or for a shape the one that haloctl would quantize to."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from workers.llm.command_line import BadInput
from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantization_groups import choose_group_size
from workers.llm.models.quantized_layout import BITS, QuantizationScheme, QuantizedLayout, default_layout
from workers.llm.quantized.low_bit_modules import FP8, linear_widths, quantize_modules
from workers.llm.quantized.parameter_sources import quantized_sources, read_folder_layout
from workers.llm.sharding.split_styles import Shape
from workers.llm.weights.checkpoint import StoredTensor, match
from workers.llm.weights.parameters import RowSource


@dataclass(frozen=True)
class ScaleOptions:
    """Options for the scales of a shape; None: haloctl's default."""

    granularity: str | None = None
    inputs: str | None = None
    group_size: int | None = None

    def scheme(self, precision: str | None, columns: list[int]) -> QuantizationScheme | None:
        """Return the scheme of a precision for weights of these widths; None for an unquantized one."""
        scheme = default_layout(precision, columns=columns).scheme
        if scheme is None:
            return None
        if precision == "int4":
            return replace(scheme, group_size=choose_group_size(columns, self.group_size))
        return replace(scheme, granularity=self.granularity or scheme.granularity, inputs=self.inputs or scheme.inputs)


@dataclass(frozen=True)
class ProgramPrecision:
    """The precision of a program's modules and KV cache."""

    name: str  #: of linear modules
    dtype: torch.dtype  #: of everything else
    kv_is_fp8: bool
    fp8: str  #: the kind that the target supports: "fn" or "fnuz"
    folder: Path | None  #: of the quantized model, where it is not the model's own
    scales: ScaleOptions = ScaleOptions()

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values in the cache."""
        return FP8[self.fp8] if self.kv_is_fp8 else self.dtype

    @property
    def scheme_precision(self) -> str | None:
        """The precision of linear modules, if it is a low-bit one."""
        return self.name if self.name in BITS else None


def quantize(meta_model: nn.Module, model: LocalModel, precision: ProgramPrecision) -> QuantizedLayout | None:
    """Bring `meta_model` into a precision; return the layout, or None where nothing is quantized.

    The FakeTensorMode of the model must be active. Raises BadInput when the folder holds another precision.
    """
    layout = _layout(meta_model, model, precision)
    if layout:
        if layout.scheme:
            for module, reason in precision_problems(meta_model, None, next(iter(BITS))):  # experts
                raise BadInput(f"{module}: {reason}")
        quantize_modules(meta_model, layout, FP8[precision.fp8], precision.dtype)
    return layout


def precision_problems(
    meta_model: nn.Module, held: QuantizedLayout | None, precision: str
) -> Iterator[tuple[str, str]]:
    """Yield the modules that can't be exported in a precision, with reasons; `held` is the model's own layout."""
    low_bit = precision if precision in BITS else None
    held_precision = held.scheme.precision if held and held.scheme else None
    if held and held_precision != low_bit:
        weights = f"its weights are {held_precision}" if held_precision else "only its KV cache is low-bit"
        yield "config.json", f"{weights}, and the job asks for {precision}: give precision {held_precision or 'f16'}"
    stacked = next((name for name, parameter in meta_model.named_parameters() if parameter.dim() > 2), None)
    if stacked and low_bit:
        module = re.sub(r"\.\d+\.", ".*.", stacked.rpartition(".")[0])
        yield module, f"weights of experts can't be held in {precision}: give f16 or bf16"


def _layout(meta_model: nn.Module, model: LocalModel, precision: ProgramPrecision) -> QuantizedLayout | None:
    folder = precision.folder or model.folder
    is_quantized = precision.scheme_precision is not None or precision.kv_is_fp8
    requested = f"precision {precision.name}{' with a KV cache in fp8' if precision.kv_is_fp8 else ''}"
    if folder is None:
        if not is_quantized:
            return None
        scheme = precision.scales.scheme(precision.scheme_precision, linear_widths(meta_model))
        return QuantizedLayout(scheme, has_fp8_kv_cache=precision.kv_is_fp8)
    layout = read_folder_layout(folder)
    if layout is None:
        if is_quantized:
            raise BadInput(
                f"{folder} is not quantized, which {requested} needs: "
                "run the stage quantize before export, or give a model that is quantized"
            )
        return None
    held_precision = layout.scheme.precision if layout.scheme else None
    if held_precision != precision.scheme_precision:
        raise BadInput(f"{folder} holds {held_precision or 'unquantized'} weights, but {requested} was asked for")
    if precision.kv_is_fp8 and not layout.has_fp8_kv_cache:
        raise BadInput(f"{folder} has no scales of an fp8 KV cache, which {requested} needs")
    return QuantizedLayout(layout.scheme, layout.ignored, precision.kv_is_fp8)


def sources(
    meta_model: nn.Module,
    stored: Mapping[str, StoredTensor],
    shapes: Mapping[str, Shape],
    tied: Mapping[str, str],
    layout: QuantizedLayout | None,
    fp8: str,
    folder: Path,
) -> dict[str, RowSource]:
    """Return the source of each parameter in `shapes` of `meta_model`, in the same order."""
    quantized = quantized_sources(meta_model, stored, layout, fp8, folder) if layout else {}
    rest = match(stored, {name: shape for name, shape in shapes.items() if name not in quantized}, tied, folder)
    return {name: quantized.get(name) or rest[name] for name in shapes if name not in tied}
