"""`python -m workers.llm.export`: a model becomes one multi-device MLIR program, its parameters and its config."""

import argparse
import json
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iree.compiler import ir
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workers.llm.assembly import Assembler
from workers.llm.attention import KERNELS, round_up
from workers.llm.checkpoint import match, read_checkpoint
from workers.llm.entry_points import EntryPoint, entry_points
from workers.llm.hollow import DTYPES, hollow_model, parameter_shapes, shard, tied_names
from workers.llm.lowering import lower
from workers.llm.model_source import Model, load_model
from workers.llm.parameters import write_parameters
from workers.llm.pieces import cut
from workers.llm.program import BadInput, add_model_arguments, naming, parse_overrides, run
from workers.llm.program_config import program_config
from workers.llm.sharding import Sharding
from workers.llm.tracing import Tracer

OUTPUTS = Path("outputs")


@dataclass(frozen=True)
class Request:
    """What is to be exported."""

    model: Model
    precision: str
    attention: str
    tp: int
    entries: list[EntryPoint]
    cache_length: int

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
    parser.add_argument("--precision", choices=DTYPES, required=True)
    parser.add_argument("--tp", type=int, default=1, help="devices the model is split over")
    parser.add_argument("--attention", choices=KERNELS, default=KERNELS[0])
    parser.add_argument("--batch", type=int, nargs="+", required=True, help="batch sizes")
    parser.add_argument("--prompt-tokens", type=int, nargs="+", required=True, help="prompt buckets")
    parser.add_argument("--cache-length", type=int, required=True, help="tokens that a row of the cache holds")
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
    limit = getattr(model.config, "max_position_embeddings", arguments.cache_length)
    if arguments.cache_length > limit:
        raise BadInput(f"--cache-length {arguments.cache_length}: this model has only {limit} positions")
    entries = entry_points(sorted(set(arguments.batch)), sorted(set(arguments.prompt_tokens)))
    return Request(model, arguments.precision, arguments.attention, arguments.tp, entries, arguments.cache_length)


def export(request: Request, folder: Path) -> dict[str, Any]:
    """Write model.mlir, the parameters and config.json into `folder`; returns the report."""
    started = time.monotonic()
    model, dtype = request.model, DTYPES[request.precision]
    mode = FakeTensorMode()
    hollow = hollow_model(model.config, dtype, request.attention, mode)
    sharding = shard(hollow, request.tp)
    refuse(sharding)
    shapes, tied = parameter_shapes(hollow), tied_names(hollow)
    stored = match(read_checkpoint(model.folder), shapes, tied, model.folder) if model.folder else {}
    text, layer_kinds = build_program(request, hollow, sharding, tied, mode)
    traced = time.monotonic()
    files = []
    if model.folder:
        heads = model.config.num_key_value_heads
        files = write_parameters(folder, stored, sharding, heads, dtype, lambda line: print(line, flush=True))
    config = program_config(
        model, request.precision, dtype, request.attention, request.tp, request.cache_length, request.entries
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


def build_program(
    request: Request, hollow: nn.Module, sharding: Sharding, tied: dict[str, str], mode: FakeTensorMode
) -> tuple[str, int]:
    """The program as MLIR text, and how many kinds of decoder layer it has."""
    stubs = cut(hollow, sharding.blocks, request.tp)
    capacity = round_up(request.cache_length)
    slots = request.largest_batch * capacity
    tracer = Tracer(hollow, stubs, sharding, slots, mode)
    programs = []
    for entry in request.entries:
        programs.append(tracer.trace(entry, capacity))
        print(f"traced {entry.name}", flush=True)
    lower(tracer.module)
    with tracer.context, ir.Location.unknown():
        Assembler(tracer.module, request.tp, tied).run(programs)
    tracer.module.operation.verify()
    kinds = {layer.symbol for layer in programs[0].layers.values()}
    return tracer.module.operation.get_asm(use_local_scope=True), len(kinds)


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
