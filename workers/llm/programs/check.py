"""Check whether models can be exported, or run by ranks, before a job is planned.

    python -m workers.llm.programs.check --model tiny-llama ... --next-model --model shape:llama3.1-8b ...

Prints a line for each model: a JSON object that lists the problems of each split, or that says why the model can't be
read: `refused`.
"""

import argparse
import gc
import hashlib
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from jobs.models import ModelKind, content_files, shape_file
from workers.llm.command_line import BadInput, add_model_arguments, parse_overrides, run
from workers.llm.export.equivalence import check_equivalence
from workers.llm.models.attention import KERNELS
from workers.llm.models.model_source import INDEX_FILE, TOKENIZER_FILES, LocalModel, load_model, load_tokenizer
from workers.llm.models.positions import position_problem
from workers.llm.models.quantization_groups import choose_group_size
from workers.llm.models.quantized_layout import BITS, QuantizationScheme, QuantizedLayout, read_layout
from workers.llm.quantized.low_bit_modules import FP8, linear_widths, quantize_modules
from workers.llm.quantized.quantized_model import precision_problems, sources
from workers.llm.sharding.plan import Sharding
from workers.llm.sharding.split_problems import family_problem
from workers.llm.sharding.split_styles import FAMILIES
from workers.llm.shark import shark_model
from workers.llm.weights.checkpoint import read_checkpoint, weight_files
from workers.llm.weights.meta_model import (
    DTYPES,
    build_meta_model,
    parameter_shapes,
    shard,
    shard_by_torch,
)
from workers.llm.weights.ties import tied_names, untie

#: keys of a config that do not describe the model itself
_NOT_CONTENT = ("transformers_version", "_name_or_path", "dtype")
NEXT_MODEL = "--next-model"  #: between the options of two models


def main() -> None:
    """Check the models of the command line."""
    for is_separator, options in itertools.groupby(sys.argv[1:], NEXT_MODEL.__eq__):
        if not is_separator:
            print(json.dumps(answer(list(options))), flush=True)


def answer(options: Sequence[str]) -> dict[str, Any]:
    """Return what is printed for one model."""
    args = parse_arguments(options)
    try:
        return checked(args)
    except BadInput as problem:
        return {"refused": str(problem)}


def checked(args: argparse.Namespace) -> dict[str, Any]:
    """Return the report about a model; raises BadInput if it can't be read."""
    model = load_model(args.model, args.revision, parse_overrides(args.override), args.weights)
    tps, torch_tps = sorted(set(args.tp)), sorted(set(args.torch_tp))
    request = CheckRequest(tps, args.attention, args.cache_length, torch_tps, args.int4, args.precision, args.sharktank)
    return check(model, request, args.weights)


def parse_arguments(options: Sequence[str]) -> argparse.Namespace:
    """Return the parsed options of a model."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.check", description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, nargs="*", default=[1], help="devices to split the model over")
    parser.add_argument("--torch-tp", type=int, nargs="*", default=[], help="ranks of a split by transformers")
    parser.add_argument(
        "--int4", type=Int4Grouping.of, nargs="*", default=[], metavar="TP[:SIZE]", help=Int4Grouping.__doc__
    )
    parser.add_argument("--precision", choices=(*DTYPES, *BITS), nargs="*", default=[], help="of the programs")
    parser.add_argument("--sharktank", type=int, nargs="*", default=[], metavar="PP", help="stages of its pipelines")
    parser.add_argument("--attention", nargs="+", choices=KERNELS, default=[KERNELS[0]])
    parser.add_argument("--cache-length", type=int, help="tokens that a row of the cache holds")
    parser.add_argument("--no-weights", dest="weights", action="store_false", help="do not look at the weights")
    return parser.parse_args(options)


@dataclass(frozen=True)
class Int4Grouping:
    """A planned int4 quantization: the devices it is split over and the columns of a group."""

    tp: int
    size: int | None  #: None: the largest that fits

    @staticmethod
    def of(text: str) -> "Int4Grouping":
        """Parse `8:64`, or `8`."""
        tp, _, size = text.partition(":")
        return Int4Grouping(int(tp), int(size) if size else None)


@dataclass(frozen=True)
class CheckRequest:
    """The uses that a job plans for a model."""

    tps: Sequence[int] = (1,)  #: splits of programs
    attentions: Sequence[str] = KERNELS[:1]
    cache_length: int | None = None  #: tokens that a row of the cache holds
    torch_tps: Sequence[int] = ()  #: ranks of torch's engines
    int4: Sequence[Int4Grouping] = ()
    precisions: Sequence[str] = ()  #: precisions of programs
    pps: Sequence[int] = ()  #: stages of the pipelines that sharktank exports


def check(model: LocalModel, request: CheckRequest, weights: bool = True) -> dict[str, Any]:
    """Return the report that the program prints; `weights` says whether to look at the weights.

    Raises BadInput for a model whose files are missing or corrupt.
    """
    if request.tps and (family := family_problem(model.config)):
        raise BadInput(": ".join(family))
    mode = FakeTensorMode()
    for attention in request.attentions if request.tps else ("eager",):
        meta_model = build_meta_model(model.config, DTYPES["f32"], attention, mode)
        if request.tps and model.config.model_type not in FAMILIES:
            check_equivalence(meta_model, attention, None)
    tensors = read_checkpoint(model.folder) if model.folder and weights else {}
    warnings = untie(meta_model, tensors, mode)
    parameters = sum(parameter.numel() for parameter in meta_model.parameters())
    layout = read_layout(model.config.to_dict(), model.folder)
    if layout:
        with mode:
            quantize_modules(meta_model, layout, FP8["fn"], DTYPES["f32"])
    if model.folder:
        load_tokenizer(model)
        if weights:
            shapes, tied = parameter_shapes(meta_model), tied_names(meta_model)
            sources(meta_model, tensors, shapes, tied, layout, "fn", model.folder)
    shardings = [shard(meta_model, tp) for tp in request.tps]
    splits = [*shardings, *(shard_by_torch(meta_model, tp) for tp in request.torch_tps)]
    if layout is None:
        splits += shard_in_groups(model.config, attention, request.int4)
    return {
        "model_type": model.config.model_type,
        "parameters": parameters,
        "config_digest": config_digest(model),
        "files": [str(path) for path in files_of(model)],
        "max_positions": getattr(model.config, "max_position_embeddings", None),
        "vocab_size": model.config.vocab_size,
        "is_quantized": layout is not None,
        "problems": list_problems(model, request, meta_model, layout, splits),
        "warnings": [*warnings, *(warning for sharding in shardings for warning in sharding.warnings)],
    }


def list_problems(
    model: LocalModel,
    request: CheckRequest,
    meta_model: nn.Module,
    layout: QuantizedLayout | None,
    splits: Iterable[Sharding],
) -> list[dict[str, Any]]:
    """Return the modules that prevent what the request plans, with reasons, and the tp where a split is at fault."""
    problems = [
        *(
            _problem(*problem)
            for name in request.precisions
            for problem in precision_problems(meta_model, layout, name)
        ),
        *(_problem(problem.module, problem.reason, problem.tp) for split in splits for problem in split.problems),
        *_position_problems(model, request),
        *(
            _problem(*problem)
            for pp in request.pps
            for problem in shark_model.problems(model, pp, request.cache_length)
        ),
    ]
    return [dict(problem) for problem in dict.fromkeys(problems)]  # int4 looks at a split again, in groups


def shard_in_groups(config: Any, attention: str, int4: Iterable[Int4Grouping]) -> Iterator[Sharding]:
    """Yield the splits of a model once it is quantized to int4."""
    tps_of_size = defaultdict(set)
    for grouping in int4:
        tps_of_size[grouping.size].add(grouping.tp)
    for size, tps in tps_of_size.items():
        mode = FakeTensorMode()
        meta_model = build_meta_model(config, DTYPES["f32"], attention, mode)
        group = choose_group_size(linear_widths(meta_model), size)
        with mode:
            layout = QuantizedLayout(QuantizationScheme("int4", "group", group, inputs=None))
            quantize_modules(meta_model, layout, FP8["fn"], DTYPES["f32"])
        yield from (shard(meta_model, tp) for tp in sorted(tps))


def _problem(module: str, reason: str, tp: int | None = None) -> tuple[tuple[str, Any], ...]:
    return tuple({**({} if tp is None else {"tp": tp}), "module": module, "reason": reason}.items())


def _position_problems(model: LocalModel, request: CheckRequest) -> Iterator[tuple[tuple[str, Any], ...]]:
    length, is_exported = request.cache_length, bool(request.tps)
    if length is not None and (reason := position_problem(model.config, length, is_exported=is_exported)):
        yield _problem("model.rotary_emb", reason)


def config_digest(model: LocalModel) -> str:
    """Return a sha256 of the model's config after overrides."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_CONTENT}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()


def files_of(model: LocalModel) -> list[Path]:
    """Return the files that the model consists of; of a hub model those that are fetched, whatever else is there."""
    if model.folder is None:
        return [shape_file(model.source)]
    if model.source.kind is not ModelKind.HUB:
        return content_files(model.folder)
    small = (path for name in ("config.json", *TOKENIZER_FILES) if (path := model.folder / name).is_file())
    index = model.folder / INDEX_FILE
    return [*small, *([index] if index.is_file() else []), *weight_files(model.folder)]


if __name__ == "__main__":
    gc.freeze()  # later collections skip the objects of the imports: a seventh of the time of a check
    run(main)
