"""`python -m workers.llm.check`: can this model be exported, or run by ranks? Says what stands in the way, beforehand.

Prints one JSON object. Problems of a split are listed in it; a model that cannot be read at all is refused (exit 2).
"""

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from workers.llm import shark_model
from workers.llm.attention import KERNELS
from workers.llm.checkpoint import content_digest, read_checkpoint, weight_files
from workers.llm.groups import group_size
from workers.llm.hollow import DTYPES, hollow_model, parameter_shapes, shard, shard_by_torch, tied_names
from workers.llm.model_source import TOKENIZER_FILES, Model, load_model, load_tokenizer
from workers.llm.program import BadInput, add_model_arguments, parse_overrides, run
from workers.llm.quantized_layout import BITS, QuantizedLayout, Scheme, read_layout
from workers.llm.quantized_model import precision_problems, sources
from workers.llm.quantized_modules import FP8, linear_widths, quantize_modules
from workers.llm.sharding import Sharding
from workers.llm.split_problems import family_problem

#: of a config, what says nothing about the model itself
_NOT_CONTENT = ("transformers_version", "_name_or_path", "dtype")


def main() -> None:
    """Check as the command line says."""
    arguments = parse_arguments()
    model = load_model(arguments.model, arguments.revision, parse_overrides(arguments.override), arguments.weights)
    tps, torch_tps = sorted(set(arguments.tp)), sorted(set(arguments.torch_tp))
    asked = Asked(
        tps,
        arguments.attention,
        arguments.cache_length,
        torch_tps,
        arguments.int4,
        arguments.precision,
        arguments.sharktank,
    )
    print(json.dumps(check(model, asked, arguments.weights), indent=1))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.check", description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--tp", type=int, nargs="*", default=[1], help="devices the model is to be split over")
    parser.add_argument("--torch-tp", type=int, nargs="*", default=[], help="ranks, as transformers splits it")
    parser.add_argument("--int4", type=Groups.of, nargs="*", default=[], metavar="TP[:SIZE]", help=Groups.__doc__)
    parser.add_argument(
        "--precision", choices=(*DTYPES, *BITS), nargs="*", default=[], help="that programs are to be in"
    )
    parser.add_argument("--sharktank", type=int, nargs="*", default=[], metavar="PP", help="stages of its pipelines")
    parser.add_argument("--attention", nargs="+", choices=KERNELS, default=[KERNELS[0]])
    parser.add_argument("--cache-length", type=int, help="tokens that a row of the cache is to hold")
    parser.add_argument("--no-weights", dest="weights", action="store_false", help="do not look at the weights")
    return parser.parse_args()


@dataclass(frozen=True)
class Groups:
    """How the weights will be quantized to int4: for how many devices, in groups of how many columns."""

    tp: int
    size: int | None  #: None: the largest that fits

    @staticmethod
    def of(text: str) -> "Groups":
        """From `8:64`, or `8`."""
        tp, _, size = text.partition(":")
        return Groups(int(tp), int(size) if size else None)


@dataclass(frozen=True)
class Asked:
    """What a job wants of a model."""

    tps: Sequence[int] = (1,)  #: of programs
    attentions: Sequence[str] = KERNELS[:1]
    cache_length: int | None = None  #: tokens that a row of the cache is to hold
    torch_tps: Sequence[int] = ()  #: ranks of torch's engines
    int4: Sequence[Groups] = ()
    precisions: Sequence[str] = ()  #: of programs
    pps: Sequence[int] = ()  #: stages of the pipelines that sharktank is to make of it


def check(model: Model, asked: Asked, weights: bool = True) -> dict[str, Any]:
    """What the program prints. Raises BadInput for a model whose files are not all there and whole."""
    family = family_problem(model.config) if asked.tps else None
    if family:
        raise BadInput(": ".join(family))
    mode = FakeTensorMode()
    for attention in asked.attentions if asked.tps else ("eager",):
        hollow = hollow_model(model.config, DTYPES["f32"], attention, mode)
    parameters = sum(parameter.numel() for parameter in hollow.parameters())
    layout = read_layout(model.config.to_dict(), model.folder)
    if layout:
        with mode:
            quantize_modules(hollow, layout, FP8["fn"], DTYPES["f32"])
    shapes, tied = parameter_shapes(hollow), tied_names(hollow)
    if model.folder:
        load_tokenizer(model)
        if weights:
            sources(hollow, read_checkpoint(model.folder), shapes, tied, layout, "fn", model.folder)
    shardings = [shard(hollow, tp) for tp in asked.tps]
    splits = [*shardings, *(shard_by_torch(hollow, tp) for tp in asked.torch_tps)]
    if layout is None:
        splits += shard_in_groups(model.config, attention, asked.int4)
    problems = [
        *(_problem(*each) for precision in asked.precisions for each in precision_problems(hollow, layout, precision)),
        *(_problem(one.module, one.reason, one.tp) for split in splits for one in split.problems),
        *(_problem(*each) for each in _position_problems(model, asked.cache_length)),
        *(_problem(*each) for pp in asked.pps for each in shark_model.problems(model, pp, asked.cache_length)),
    ]
    return {
        "model_type": model.config.model_type,
        "parameters": parameters,
        "digest": digest(model, weights),
        "max_positions": getattr(model.config, "max_position_embeddings", None),
        "vocab_size": model.config.vocab_size,
        "is_quantized": layout is not None,
        "problems": [dict(one) for one in dict.fromkeys(problems)],  # a split is looked at twice before it is quantized
        "warnings": [warning for sharding in shardings for warning in sharding.warnings],
    }


def shard_in_groups(config: Any, attention: str, int4: Iterable[Groups]) -> Iterator[Sharding]:
    """How a model would be split that is yet to be quantized to int4."""
    sizes = defaultdict(set)
    for one in int4:
        sizes[one.size].add(one.tp)
    for asked, tps in sizes.items():
        mode = FakeTensorMode()
        hollow = hollow_model(config, DTYPES["f32"], attention, mode)
        scheme = Scheme("int4", "group", group_size(linear_widths(hollow), asked), inputs=None)
        with mode:
            quantize_modules(hollow, QuantizedLayout(scheme), FP8["fn"], DTYPES["f32"])
        yield from (shard(hollow, tp) for tp in sorted(tps))


def _problem(module: str, reason: str, tp: int | None = None) -> tuple[tuple[str, Any], ...]:
    at = {} if tp is None else {"tp": tp}
    return tuple({**at, "module": module, "reason": reason}.items())


def _position_problems(model: Model, cache_length: int | None) -> Iterator[tuple[str, str]]:
    limit = getattr(model.config, "max_position_embeddings", None)
    if cache_length is not None and limit is not None and cache_length > limit:
        reason = f"prompt and new tokens need {cache_length} positions, the model has {limit} (max_position_embeddings)"
        yield "model.rotary_emb", reason


def digest(model: Model, weights: bool = True) -> str:
    """A sha256 of all that makes the model what it is: config after overrides, weights, tokenizer."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_CONTENT}
    content = [json.dumps(config, sort_keys=True, default=str)]
    if model.folder:
        content.append(content_digest(_present(model.folder)))
        content.append(content_digest(weight_files(model.folder)) if weights else "")
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _present(folder: Path) -> list[Path]:
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


if __name__ == "__main__":
    run(main)
