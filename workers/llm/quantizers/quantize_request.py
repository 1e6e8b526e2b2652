"""The command line that all quantizers share, and the model and calibration text that it names."""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from jobs.models import SHIPPED
from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, positive_int
from workers.llm.models.model_source import LocalModel, load_model, load_tokenizer
from workers.llm.models.quantization_groups import choose_group_size
from workers.llm.models.quantized_layout import BITS, LEFT_ALONE, QuantizationScheme, QuantizedLayout

CALIBRATION_TEXT = SHIPPED / "tiny-llama" / "calibration.txt"


@dataclass(frozen=True)
class QuantizeRequest:
    """The model to quantize, the scheme, and the calibration text."""

    model: LocalModel
    precision: str | None  #: of the weights: "fp8", "int8" or "int4"; None: unquantized
    granularity: str | None  #: of the weights' scales: "tensor", "channel" or "group"
    inputs: str | None  #: "static" or "dynamic"; None: unquantized
    group_size: int | None  #: None: the largest that fits
    scales_kv: bool  #: also write the scales of an fp8 KV cache
    windows: int
    tokens: int  #: in each window
    text: Path
    options: Mapping[str, Any]  #: the quantizer's own
    started: float = field(default_factory=time.monotonic)  #: on the monotonic clock, in seconds

    def layout(self, columns: list[int], *, zero_points: str | None = None) -> QuantizedLayout:
        """Return the layout to write, for weights of these widths; `zero_points` is "int", "float" or None."""
        if self.precision is None or self.granularity is None:
            return QuantizedLayout(None, has_fp8_kv_cache=self.scales_kv)
        group = self.choose_group_size(columns) if self.granularity == "group" else None
        scheme = QuantizationScheme(
            self.precision,
            self.granularity,
            group,
            is_symmetric=zero_points is None,
            inputs=self.inputs,
            has_float_zero_points=zero_points == "float",
        )
        return QuantizedLayout(scheme, LEFT_ALONE, self.scales_kv)

    def choose_group_size(self, columns: list[int]) -> int:
        """Return how many columns share a scale. Raises BadInput when that does not divide all widths."""
        return choose_group_size(columns, self.group_size)

    def calibration_windows(self) -> torch.Tensor:
        """Return windows of token ids [windows, tokens], spread evenly over the text."""
        tokenizer = load_tokenizer(self.model)
        try:
            ids = tokenizer(self.text.read_text(encoding="utf-8"), verbose=False).input_ids
        except (OSError, UnicodeDecodeError) as problem:
            raise BadInput(f"the calibration text {self.text} cannot be read: {problem}") from None
        if len(ids) < self.windows * self.tokens:
            raise BadInput(
                f"the calibration text {self.text} has {len(ids)} tokens, and {self.windows} windows of {self.tokens} "
                f"need {self.windows * self.tokens}: give a longer text, or fewer windows"
            )
        return torch.tensor(ids).unfold(0, self.tokens, len(ids) // self.windows)[: self.windows]


def read_request(quantizer: str) -> QuantizeRequest:
    """Read the command line of the program `quantizer`, and find the model."""
    parser = argparse.ArgumentParser(prog=f"python -m workers.llm.quantizers.{quantizer}")
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=BITS, help="of weights; by default they stay unquantized")
    parser.add_argument("--granularity", choices=("tensor", "channel", "group"), help="of weights' scales")
    parser.add_argument("--inputs", choices=("static", "dynamic"), help="scales of linear modules' inputs")
    parser.add_argument("--group-size", type=positive_int, help="columns that share a scale")
    parser.add_argument("--scale-kv-cache", action="store_true", help="also make scales for a KV cache in fp8")
    parser.add_argument("--windows", type=positive_int, default=32, help="windows of calibration text")
    parser.add_argument("--tokens", type=positive_int, default=128, help="in each window")
    parser.add_argument("--text", type=Path, default=CALIBRATION_TEXT, help="UTF-8 calibration text")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="an option of the quantizer")
    args = parser.parse_args()
    return QuantizeRequest(
        load_model(args.model, args.revision, parse_overrides(args.override)),
        args.precision,
        args.granularity,
        args.inputs,
        args.group_size,
        args.scale_kv_cache,
        args.windows,
        args.tokens,
        args.text,
        {name: json.loads(value) for name, _, value in (option.partition("=") for option in args.option)},
    )
