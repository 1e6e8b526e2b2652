"""What of a model is exported in few bits: as its folder says, or for a shape as haloctl would quantize it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from workers.llm.checkpoint import StoredTensor, match
from workers.llm.groups import group_size
from workers.llm.model_source import Model
from workers.llm.parameters import Rows
from workers.llm.program import BadInput
from workers.llm.quantized_layout import BITS, QuantizedLayout, Scheme, default_layout
from workers.llm.quantized_modules import FP8, linear_widths, quantize_modules
from workers.llm.quantized_sources import quantized_sources, read_folder_layout
from workers.llm.split_styles import Shape


@dataclass(frozen=True)
class Scales:
    """How a shape is to be scaled; None: as haloctl does it by itself."""

    granularity: str | None = None
    inputs: str | None = None
    group_size: int | None = None

    def scheme(self, precision: str | None, columns: list[int]) -> Scheme | None:
        """That of a low precision; `columns` are the widths of the weights."""
        scheme = default_layout(precision, columns=columns).scheme
        if scheme is None:
            return None
        if precision == "int4":
            return replace(scheme, group_size=group_size(columns, self.group_size))
        return replace(scheme, granularity=self.granularity or scheme.granularity, inputs=self.inputs or scheme.inputs)


@dataclass(frozen=True)
class Wanted:
    """What a program is to be in; `folder` holds the quantized model where it is not the model's own."""

    precision: str  #: of linear modules
    dtype: torch.dtype  #: of everything else
    kv_is_fp8: bool
    fp8: str  #: the kind that the target knows: "fn" or "fnuz"
    folder: Path | None
    scales: Scales = Scales()

    @property
    def cache_dtype(self) -> torch.dtype:
        """What keys and values are held in."""
        return FP8[self.fp8] if self.kv_is_fp8 else self.dtype

    @property
    def scheme_precision(self) -> str | None:
        """The low precision of linear modules, if it is one."""
        return self.precision if self.precision in BITS else None


def quantize(hollow: nn.Module, model: Model, wanted: Wanted) -> QuantizedLayout | None:
    """Make `hollow` what `wanted` says; returns the layout, None where nothing is quantized.

    To be called under the FakeTensorMode of the model. Raises BadInput when the folder holds something else.
    """
    layout = _layout(hollow, model, wanted)
    if layout:
        if layout.scheme:
            _expect_no_experts(hollow)
        quantize_modules(hollow, layout, FP8[wanted.fp8], wanted.dtype)
    return layout


def _expect_no_experts(hollow: nn.Module) -> None:
    for module, reason in precision_problems(hollow, None, next(iter(BITS))):
        raise BadInput(f"{module}: {reason}")


def precision_problems(hollow: nn.Module, held: QuantizedLayout | None, precision: str) -> Iterator[tuple[str, str]]:
    """Modules that can't be exported in a precision, with the reason; `held` is what the model comes quantized in."""
    wanted = precision if precision in BITS else None
    has = held.scheme.precision if held and held.scheme else None
    if held and has != wanted:
        known = f"its weights are {has}" if has else "its weights are not in few bits, only its KV cache is"
        yield "config.json", f"{known}, and the job asks for {precision}: give precision {has or 'f16'}"
    stacked = next((name for name, parameter in hollow.named_parameters() if parameter.dim() > 2), None)
    if stacked and wanted:
        module = re.sub(r"\.\d+\.", ".*.", stacked.rpartition(".")[0])
        yield module, f"weights of experts can't be held in {precision}: give f16 or bf16"


def _layout(hollow: nn.Module, model: Model, wanted: Wanted) -> QuantizedLayout | None:
    folder = wanted.folder or model.folder
    is_asked_for = wanted.scheme_precision is not None or wanted.kv_is_fp8
    if folder is None:
        if not is_asked_for:
            return None
        scheme = wanted.scales.scheme(wanted.scheme_precision, linear_widths(hollow))
        return QuantizedLayout(scheme, has_fp8_kv_cache=wanted.kv_is_fp8)
    layout = read_folder_layout(folder)
    if layout is None:
        if is_asked_for:
            raise BadInput(
                f"{folder} is not quantized, which {_asked(wanted)} needs: "
                "run the stage quantize before export, or give a model that is quantized"
            )
        return None
    precision = layout.scheme.precision if layout.scheme else None
    if precision != wanted.scheme_precision:
        raise BadInput(f"{folder} holds {precision or 'unquantized'} weights, but {_asked(wanted)} was asked for")
    if wanted.kv_is_fp8 and not layout.has_fp8_kv_cache:
        raise BadInput(f"{folder} has no scales of an fp8 KV cache, which {_asked(wanted)} needs")
    return QuantizedLayout(layout.scheme, layout.ignored, wanted.kv_is_fp8)


def _asked(wanted: Wanted) -> str:
    return f"precision {wanted.precision}{' with a KV cache in fp8' if wanted.kv_is_fp8 else ''}"


def sources(
    hollow: nn.Module,
    stored: Mapping[str, StoredTensor],
    shapes: Mapping[str, Shape],
    tied: Mapping[str, str],
    layout: QuantizedLayout | None,
    fp8: str,
    folder: Path,
) -> dict[str, Rows]:
    """Where each of the parameters `shapes` of `hollow` comes from, in their order."""
    quantized = quantized_sources(hollow, stored, layout, fp8, folder) if layout else {}
    rest = match(stored, {name: shape for name, shape in shapes.items() if name not in quantized}, tied, folder)
    return {name: quantized.get(name) or rest[name] for name in shapes if name not in tied}
