"""What every maker is told on its command line, and the model and calibration text that this means."""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from jobs.models import SHIPPED
from workers.llm.groups import group_size
from workers.llm.model_source import Model, load_model, load_tokenizer
from workers.llm.program import BadInput, add_model_arguments, parse_overrides, positive
from workers.llm.quantized_layout import BITS, LEFT_ALONE, QuantizedLayout, Scheme

CALIBRATION_TEXT = SHIPPED / "tiny-llama" / "calibration.txt"


@dataclass(frozen=True)
class Request:
    """What is to be quantized, and how."""

    model: Model
    precision: str | None  #: of the weights: "fp8", "int8" or "int4"; None: as they are
    granularity: str | None  #: of the weights' scales: "tensor", "channel" or "group"
    inputs: str | None  #: "static", "dynamic"; None: inputs stay as they are
    group_size: int | None  #: None: the largest that fits
    scales_kv: bool  #: the KV cache is to be fp8
    windows: int
    tokens: int  #: of a window
    text: Path
    options: Mapping[str, Any]  #: the maker's own
    started: float = field(default_factory=time.monotonic)

    def layout(self, columns: list[int], *, zero_points: str | None = None) -> QuantizedLayout:
        """What is to come out; `columns` are the widths of the weights, `zero_points` "int", "float" or none."""
        if self.precision is None or self.granularity is None:
            return QuantizedLayout(None, has_fp8_kv_cache=self.scales_kv)
        group = self.group(columns) if self.granularity == "group" else None
        scheme = Scheme(
            self.precision,
            self.granularity,
            group,
            is_symmetric=zero_points is None,
            inputs=self.inputs,
            has_float_zero_points=zero_points == "float",
        )
        return QuantizedLayout(scheme, LEFT_ALONE, self.scales_kv)

    def group(self, columns: list[int]) -> int:
        """How many columns share a scale; raises BadInput where the widths can't be divided so."""
        return group_size(columns, self.group_size)

    def tokens_of_windows(self) -> torch.Tensor:
        """The calibration windows [windows, tokens], from all over the text."""
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


def read_request(maker: str) -> Request:
    """Read the command line of a maker's program."""
    parser = argparse.ArgumentParser(prog=f"python -m workers.llm.quantizers.{maker}")
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=BITS, help="of weights; without it they stay as they are")
    parser.add_argument("--granularity", choices=("tensor", "channel", "group"), help="of weights' scales")
    parser.add_argument("--inputs", choices=("static", "dynamic"), help="scales of linear modules' inputs")
    parser.add_argument("--group-size", type=positive, help="columns that share a scale")
    parser.add_argument("--scale-kv-cache", action="store_true", help="also make scales for a KV cache in fp8")
    parser.add_argument("--windows", type=positive, default=32, help="windows of calibration text")
    parser.add_argument("--tokens", type=positive, default=128, help="of each window")
    parser.add_argument("--text", type=Path, default=CALIBRATION_TEXT, help="UTF-8 calibration text")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="of the maker's own")
    args = parser.parse_args()
    return Request(
        load_model(args.model, args.revision, parse_overrides(args.override)),
        args.precision,
        args.granularity,
        args.inputs,
        args.group_size,
        args.scale_kv_cache,
        args.windows,
        args.tokens,
        args.text,
        dict(_option(item) for item in args.option),
    )


def _option(item: str) -> tuple[str, Any]:
    name, _, value = item.partition("=")
    return name, json.loads(value)
