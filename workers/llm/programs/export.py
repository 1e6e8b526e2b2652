"""Export a model as one multi-device MLIR program, its parameters and its config.

python -m workers.llm.programs.export --model tiny-llama --tp 2 ...
"""

import argparse
import gc
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from iree.compiler import ir
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from jobs.contexts import serving_contexts, workload_contexts
from workers.llm.command_line import (
    BadInput,
    add_model_arguments,
    os_errors_naming,
    parse_overrides,
    peak_rss_bytes,
    positive_int,
    run,
    write_text,
)
from workers.llm.export.assembly import ProgramAssembler
from workers.llm.export.entry_points import EntryPoint, ServingSizes, entry_points, in_order, serving_entry_points
from workers.llm.export.equivalence import check_equivalence
from workers.llm.export.kv_cache import BLOCK_TOKENS, CacheLayout
from workers.llm.export.lowering import lower
from workers.llm.export.program_config import block_table_file, program_config
from workers.llm.export.residual_stream import ResidualStream
from workers.llm.export.subgraphs import cut_into_subgraphs
from workers.llm.export.taps import NO_TAPS, TapOutput, Taps
from workers.llm.export.tracing import ModuleImporter, SubgraphTracer, slot_shape
from workers.llm.models.added_biases import with_added_biases
from workers.llm.models.attention import KERNELS
from workers.llm.models.model_source import LocalModel, load_model
from workers.llm.models.positions import position_problem
from workers.llm.models.quantized_layout import BITS, QuantizedLayout
from workers.llm.quantized.low_bit_modules import FP8
from workers.llm.quantized.quantized_model import ProgramPrecision, ScaleOptions, quantize, sources
from workers.llm.sharding.plan import Sharding
from workers.llm.weights.checkpoint import read_checkpoint
from workers.llm.weights.meta_model import DTYPES, build_meta_model, parameter_shapes, shard
from workers.llm.weights.parameters import RowSource, ShardedLayout, lay_out, write_parameters
from workers.llm.weights.ties import tied_names, untie

OUTPUTS = Path("outputs")


@dataclass(frozen=True)
class ExportRequest:
    """The model to export, its precision and split, and the entry points of the program."""

    model: LocalModel
    precision: ProgramPrecision
    attention: str
    tp: int
    entries: list[EntryPoint]
    cache: CacheLayout


def main() -> None:
    """Export as the command line says."""
    request = read_request(parse_arguments())
    OUTPUTS.mkdir(exist_ok=True)
    report = export(request, OUTPUTS)
    write_text(OUTPUTS / "export.json", json.dumps(report, indent=1))
    print(f"exported in {report['trace_s'] + report['parameters_s']:.1f} s", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.export", description=__doc__)
    add_export_arguments(parser)
    return parser.parse_args()


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what is exported, and how."""
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=(*DTYPES, *BITS), required=True, help="of linear modules")
    parser.add_argument(
        "--activations", choices=DTYPES, default="f16", help="of the rest, where linear modules are low-bit"
    )
    parser.add_argument("--kv-precision", choices=("same", "fp8"), default="same", help="of the KV cache")
    parser.add_argument("--fp8", choices=FP8, default="fnuz", help="the kind of fp8 that the target supports")
    parser.add_argument("--quantized", type=Path, help="a folder with the model's weights in low precision")
    parser.add_argument("--granularity", choices=("tensor", "channel"), help="of a shape's weight scales")
    parser.add_argument("--inputs", choices=("static", "dynamic"), help="scales of a shape's inputs")
    parser.add_argument("--group-size", type=positive_int, help="columns of a shape's weights that share a scale")
    parser.add_argument("--tp", type=int, default=1, help="devices the model is split over")
    parser.add_argument("--attention", choices=KERNELS, default=KERNELS[0])
    parser.add_argument("--batch", type=int, nargs="+", required=True, help="batch sizes")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", required=True, help="prompt buckets")
    parser.add_argument("--cache-length", type=int, required=True, help="tokens that a row of the cache holds")
    parser.add_argument("--block-tokens", type=int, choices=BLOCK_TOKENS, help="page the cache, in blocks of this size")
    parser.add_argument("--decode-batch", type=positive_int, nargs="*", help="batch sizes that a server decodes")
    parser.add_argument("--prefill-batch", type=positive_int, nargs="*", help="batch sizes in which it takes prompts")
    parser.add_argument("--chunk-tokens", type=positive_int, default=128, help="of a prompt that it takes in parts")
    parser.add_argument(
        "--kv-pool-blocks", type=positive_int, help="blocks of a paged cache, with one that is nobody's"
    )


def read_request(args: argparse.Namespace) -> ExportRequest:
    """Check the command line's numbers and find the model."""
    for name in ("batch", "prompt_tokens"):
        if min(getattr(args, name)) < 1:
            raise BadInput(f"--{name.replace('_', '-')}: expected numbers of 1 or more")
    if args.tp < 1:
        raise BadInput("--tp: expected 1 or more")
    longest = max(args.prompt_tokens)
    if args.cache_length < longest:
        raise BadInput(f"--cache-length {args.cache_length} cannot hold a prompt of {longest} tokens")
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    model = with_added_biases(model, args.quantized)
    if reason := position_problem(model.config, args.cache_length):
        raise BadInput(f"--cache-length {args.cache_length}: {reason}")
    cache, entries = read_layout_and_entries(args)
    dtype = DTYPES.get(args.precision, DTYPES[args.activations])
    scales = ScaleOptions(args.granularity, args.inputs, args.group_size)
    precision = ProgramPrecision(args.precision, dtype, args.kv_precision == "fp8", args.fp8, args.quantized, scales)
    return ExportRequest(model, precision, args.attention, args.tp, entries, cache)


def read_layout_and_entries(args: argparse.Namespace) -> tuple[CacheLayout, list[EntryPoint]]:
    """Return the layout of the KV cache, and the entry points that the command line asks for."""
    contexts = workload_contexts(args.prompt_tokens, args.cache_length, args.block_tokens)
    entries = entry_points(args.batch, args.prompt_tokens, contexts)
    if args.decode_batch or args.prefill_batch:
        if not (args.decode_batch and args.prefill_batch and args.block_tokens):
            raise BadInput("--decode-batch, --prefill-batch: a server needs both, and --block-tokens")
        serving = ServingSizes(args.decode_batch, args.prefill_batch, args.chunk_tokens)
        ladder = serving_contexts(args.cache_length, args.block_tokens)
        entries += serving_entry_points(serving, args.prompt_tokens, ladder)
    layout = CacheLayout(args.cache_length, max(entry.batch for entry in entries), args.block_tokens)
    if args.kv_pool_blocks is not None:
        needed = replace(layout, rows=max(args.batch)).pool
        if args.block_tokens is None or args.kv_pool_blocks < needed:
            raise BadInput(f"--kv-pool-blocks {args.kv_pool_blocks}: a batch of {max(args.batch)} rows needs {needed}")
        layout = replace(layout, pool_blocks=args.kv_pool_blocks)
    return layout, in_order(entries)


@dataclass(frozen=True)
class PreparedModel:
    """A request with its meta model, in the program's precision, and how its parameters lie in the archives."""

    request: ExportRequest
    meta_model: nn.Module
    mode: FakeTensorMode
    quantized: QuantizedLayout | None
    sharding: Sharding
    tied: dict[str, str]
    stored: dict[str, RowSource]  #: empty for a shape
    layout: ShardedLayout


def export(request: ExportRequest, folder: Path) -> dict[str, Any]:
    """Write model.mlir, the parameters and config.json into `folder`; return the report."""
    started = time.monotonic()
    prepared = prepare(request)
    text, layer_kinds, _ = build_program(prepared)
    traced = time.monotonic()
    stored, layout = prepared.stored, prepared.layout
    files = write_parameters(folder, stored, layout, lambda line: print(line, flush=True)) if stored else []
    write_text(folder / "model.mlir", text)
    write_config(prepared.request, prepared.quantized, folder)
    return {
        "trace_s": round(traced - started, 3),
        "parameters_s": round(time.monotonic() - traced, 3),
        "peak_rss_bytes": peak_rss_bytes(),
        "mlir_bytes": (folder / "model.mlir").stat().st_size,
        "parameter_bytes": sum(file.stat().st_size for file in files),
        "layer_kinds": layer_kinds,
    }


def prepare(request: ExportRequest) -> PreparedModel:
    """Build the meta model, and lay out its parameters. Raises BadInput for a model that can't be exported so."""
    model, precision = request.model, request.precision
    mode = FakeTensorMode()
    meta_model = build_meta_model(model.config, precision.dtype, request.attention, mode)
    check_equivalence(meta_model, request.attention, request.cache.block_tokens)
    weights = precision.folder or model.folder
    tensors = read_checkpoint(weights) if weights else {}
    for warning in untie(meta_model, tensors, mode):
        print(f"warning: {warning}", flush=True)
    with mode:
        quantized = quantize(meta_model, model, precision)
    sharding = shard(meta_model, request.tp)
    check_sharding(sharding)
    request = replace(request, cache=choose_cache_layout(request, sharding))
    shapes, tied = parameter_shapes(meta_model), tied_names(meta_model)
    stored: dict[str, RowSource] = {}
    if weights:
        stored = sources(meta_model, tensors, shapes, tied, quantized, precision.fp8, weights)
    untied = {name: shape for name, shape in shapes.items() if name not in tied}
    layout = lay_out(untied, sharding, {name: parameter.dtype for name, parameter in meta_model.named_parameters()})
    return PreparedModel(request, meta_model, mode, quantized, sharding, tied, stored, layout)


def check_sharding(sharding: Sharding) -> None:
    """Print the warnings of a split. Raises BadInput for a model that cannot be split this way."""
    for warning in sharding.warnings:
        print(f"warning: {warning}", flush=True)
    if sharding.problems:
        reasons = "; ".join(f"{problem.module}: {problem.reason}" for problem in sharding.problems)
        raise BadInput(f"tp {sharding.tp} does not suit this model: {reasons}")


def choose_cache_layout(request: ExportRequest, sharding: Sharding) -> CacheLayout:
    """Return the requested layout of the KV cache, with the spare tokens that IREE's bugs require."""
    config, precision = request.model.config, request.precision
    streams = [ResidualStream(entry.batch * entry.tokens, sharding.tp) for entry in request.entries]
    hidden_bytes = {stream.local_tokens * config.hidden_size * precision.dtype.itemsize for stream in streams}
    slot_bytes = math.prod(slot_shape(sharding)) * precision.cache_dtype.itemsize
    return request.cache.clear_of(hidden_bytes, slot_bytes, config.num_hidden_layers)


def build_program(prepared: PreparedModel, taps: Taps = NO_TAPS) -> tuple[str, int, dict[str, list[TapOutput]]]:
    """Return the program as MLIR text, how many kinds of decoder layer it has, and what each entry point is tapped for.

    The meta model is cut into subgraphs, so this can be done once.
    """
    request, sharding, mode = prepared.request, prepared.sharding, prepared.mode
    stubs = cut_into_subgraphs(prepared.meta_model, sharding)
    importer, cache_dtype = ModuleImporter(), request.precision.cache_dtype
    tracer = SubgraphTracer(prepared.meta_model, stubs, sharding, request.cache, mode, cache_dtype, importer.add, taps)
    programs = []
    for entry in request.entries:
        programs.append(tracer.trace(entry))
        print(f"traced {entry.name}", flush=True)
    try:
        lower(importer.module)
    except ir.MLIRError as error:
        raise BadInput(f"IREE cannot lower this {request.model.config.model_type}: {error}") from None
    with importer.context, ir.Location.unknown():
        assembler = ProgramAssembler(
            importer.module, prepared.tied, prepared.layout.archives, is_inlined=taps.is_inlined
        )
        assembler.run(programs)
    importer.module.operation.verify()
    kinds = {layer.symbol for layer in programs[0].layers.values()}
    return importer.module.operation.get_asm(use_local_scope=True), len(kinds), assembler.taps


def write_config(request: ExportRequest, quantized: QuantizedLayout | None, folder: Path) -> None:
    """Write config.json, and the block tables of a paged cache with which each row has its own blocks."""
    config = program_config(
        request.model,
        request.precision,
        quantized,
        request.attention,
        request.tp,
        request.cache,
        request.entries,
    )
    for entry in request.entries:
        if file := block_table_file(entry, request.cache):
            path = folder / file
            with os_errors_naming(path):
                np.save(path, request.cache.block_table(entry.batch, entry.context or request.cache.capacity))
    write_text(folder / "config.json", json.dumps(config, indent=1))


if __name__ == "__main__":
    gc.freeze()  # later collections skip the objects of the imports: a fifth of the time of a small export
    run(main)
