"""`python -m workers.llm.export`: a model becomes one multi-device MLIR program, its parameters and its config."""

import argparse
import json
import math
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from iree.compiler import ir
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workers.llm.added_biases import with_added_biases
from workers.llm.assembly import Assembler
from workers.llm.attention import KERNELS
from workers.llm.checkpoint import read_checkpoint
from workers.llm.entry_points import EntryPoint, entry_points
from workers.llm.hollow import DTYPES, hollow_model, parameter_shapes, shard, tied_names
from workers.llm.kv_cache import BLOCK_TOKENS, CacheLayout, block_table
from workers.llm.lowering import lower
from workers.llm.model_source import Model, load_model
from workers.llm.parameters import Layout, lay_out, write_parameters
from workers.llm.pieces import cut
from workers.llm.program import BadInput, add_model_arguments, naming, parse_overrides, positive, run
from workers.llm.program_config import program_config
from workers.llm.quantized_layout import BITS
from workers.llm.quantized_model import Scales, Wanted, quantize, sources
from workers.llm.quantized_modules import FP8
from workers.llm.sharding import Sharding
from workers.llm.tracing import Tracer, slot_shape

OUTPUTS = Path("outputs")


@dataclass(frozen=True)
class Request:
    """What is to be exported."""

    model: Model
    wanted: Wanted
    attention: str
    tp: int
    entries: list[EntryPoint]
    layout: CacheLayout

    @property
    def largest_batch(self) -> int:
        """What the cache is sized for."""
        return max(entry.batch for entry in self.entries)


def main() -> None:
    """Export as the command line says."""
    request = read_request(parse_arguments())
    OUTPUTS.mkdir(exist_ok=True)
    report = export(request, OUTPUTS)
    write_text(OUTPUTS / "export.json", json.dumps(report, indent=1))
    print(f"exported in {report['trace_s'] + report['parameters_s']:.1f} s", flush=True)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.export", description=__doc__)
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=(*DTYPES, *BITS), required=True, help="of linear modules")
    parser.add_argument("--activations", choices=DTYPES, default="f16", help="of the rest, where that is of few bits")
    parser.add_argument("--kv-precision", choices=("same", "fp8"), default="same", help="of the KV cache")
    parser.add_argument("--fp8", choices=FP8, default="fnuz", help="the kind of fp8 that the target knows")
    parser.add_argument("--quantized", type=Path, help="a folder with the model's weights in low precision")
    parser.add_argument("--granularity", choices=("tensor", "channel"), help="of a shape's weight scales")
    parser.add_argument("--inputs", choices=("static", "dynamic"), help="scales of a shape's inputs")
    parser.add_argument("--group-size", type=positive, help="columns of a shape's weights that share a scale")
    parser.add_argument("--tp", type=int, default=1, help="devices the model is split over")
    parser.add_argument("--attention", choices=KERNELS, default=KERNELS[0])
    parser.add_argument("--batch", type=int, nargs="+", required=True, help="batch sizes")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", required=True, help="prompt buckets")
    parser.add_argument("--cache-length", type=int, required=True, help="tokens that a row of the cache holds")
    parser.add_argument("--block-tokens", type=int, choices=BLOCK_TOKENS, help="page the cache in blocks of so many")
    return parser.parse_args()


def read_request(arguments: argparse.Namespace) -> Request:
    """Check the command line's numbers and find the model."""
    for name in ("batch", "prompt_tokens"):
        if min(getattr(arguments, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')}: expected numbers of 1 or more")
    if arguments.tp < 1:
        raise BadInput("--tp: expected 1 or more")
    longest = max(arguments.prompt_tokens)
    if arguments.cache_length < longest:
        raise BadInput(f"--cache-length {arguments.cache_length} cannot hold a prompt of {longest} tokens")
    model = load_model(arguments.model, arguments.revision, parse_overrides(arguments.override))
    model = with_added_biases(model, arguments.quantized)
    limit = getattr(model.config, "max_position_embeddings", arguments.cache_length)
    if arguments.cache_length > limit:
        raise BadInput(f"--cache-length {arguments.cache_length}: this model has only {limit} positions")
    entries = entry_points(sorted(set(arguments.batch)), sorted(set(arguments.prompt_tokens)))
    layout = CacheLayout(arguments.cache_length, arguments.block_tokens)
    dtype = DTYPES.get(arguments.precision, DTYPES[arguments.activations])
    kv_is_fp8 = arguments.kv_precision == "fp8"
    scales = Scales(arguments.granularity, arguments.inputs, arguments.group_size)
    wanted = Wanted(arguments.precision, dtype, kv_is_fp8, arguments.fp8, arguments.quantized, scales)
    return Request(model, wanted, arguments.attention, arguments.tp, entries, layout)


def export(request: Request, folder: Path) -> dict[str, Any]:
    """Write model.mlir, the parameters and config.json into `folder`; returns the report."""
    started = time.monotonic()
    model, wanted = request.model, request.wanted
    mode = FakeTensorMode()
    hollow = hollow_model(model.config, wanted.dtype, request.attention, mode)
    with mode:
        quantized = quantize(hollow, model, wanted)
    sharding = shard(hollow, request.tp)
    refuse(sharding)
    request = replace(request, layout=working_layout(request, sharding))
    shapes, tied = parameter_shapes(hollow), tied_names(hollow)
    weights = wanted.folder or model.folder
    stored = sources(hollow, read_checkpoint(weights), shapes, tied, quantized, wanted.fp8, weights) if weights else {}
    own = {name: shape for name, shape in shapes.items() if name not in tied}
    layout = lay_out(own, sharding, {name: parameter.dtype for name, parameter in hollow.named_parameters()})
    text, layer_kinds = build_program(request, hollow, sharding, tied, layout, mode)
    traced = time.monotonic()
    files = []
    if stored:
        files = write_parameters(folder, stored, layout, lambda line: print(line, flush=True))
    tables = write_block_tables(folder, request) if request.layout.block_tokens else {}
    config = program_config(
        model, wanted, quantized, request.attention, request.tp, request.layout, request.entries, tables
    )
    write_text(folder / "model.mlir", text)
    write_text(folder / "config.json", json.dumps(config, indent=1))
    return {
        "trace_s": round(traced - started, 3),
        "parameters_s": round(time.monotonic() - traced, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "mlir_bytes": (folder / "model.mlir").stat().st_size,
        "parameter_bytes": sum(file.stat().st_size for file in files),
        "layer_kinds": layer_kinds,
    }


def refuse(sharding: Sharding) -> None:
    """Raise for a model that cannot be split as asked."""
    for warning in sharding.warnings:
        print(f"warning: {warning}", flush=True)
    if sharding.problems:
        reasons = "; ".join(f"{problem.module}: {problem.reason}" for problem in sharding.problems)
        raise BadInput(f"tp {sharding.tp} does not suit this model: {reasons}")


def working_layout(request: Request, sharding: Sharding) -> CacheLayout:
    """That of the KV cache, with what IREE's mistakes make it need."""
    config, wanted = request.model.config, request.wanted
    hidden = {entry.batch * entry.tokens * config.hidden_size * wanted.dtype.itemsize for entry in request.entries}
    slot_bytes = math.prod(slot_shape(config, sharding)) * wanted.cache_dtype.itemsize
    return request.layout.clear_of(hidden, request.largest_batch, slot_bytes, config.num_hidden_layers)


def build_program(
    request: Request,
    hollow: nn.Module,
    sharding: Sharding,
    tied: dict[str, str],
    layout: Layout,
    mode: FakeTensorMode,
) -> tuple[str, int]:
    """The program as MLIR text, and how many kinds of decoder layer it has."""
    stubs = cut(hollow, sharding)
    slots = request.layout.slots(request.largest_batch)
    tracer = Tracer(hollow, stubs, sharding, slots, mode, request.wanted.cache_dtype)
    programs = []
    for entry in request.entries:
        programs.append(tracer.trace(entry, request.layout))
        print(f"traced {entry.name}", flush=True)
    lower(tracer.module)
    with tracer.context, ir.Location.unknown():
        Assembler(tracer.module, tied, layout.packings).run(programs)
    tracer.module.operation.verify()
    kinds = {layer.symbol for layer in programs[0].layers.values()}
    return tracer.module.operation.get_asm(use_local_scope=True), len(kinds)


def write_block_tables(folder: Path, request: Request) -> dict[int, str]:
    """A table for each batch size in which every row has blocks of its own; returns their files' names."""
    files = {}
    for batch in sorted({entry.batch for entry in request.entries}):
        files[batch] = f"block_table_bs{batch}.npy"
        path = folder / files[batch]
        with naming(path):
            np.save(path, block_table(batch, request.layout.blocks))
    return files


def write_text(path: Path, text: str) -> None:
    """Write a file that appears only when it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with naming(path):
            partial.write_text(text)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    run(main)
