"""Expanding the call of a block: every rank calls its part, which takes tensors of its own and yields a part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.mlir_ops import emit
from workers.llm.export.residual_stream import RankValues, sum_everywhere
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.export.tracing import TracedBlock


@dataclass(frozen=True)
class RequiredTensor:
    """A tensor that a function needs on `rank`."""

    kind: str  #: "input", "weight", "cache", or "entry": the archive entry that a weight lies in
    name: str  #: the index of an input; of the others the name relative to the layer
    rank: int
    meta: TensorMeta


Supplier = Callable[[RequiredTensor], ir.Value]


@dataclass(frozen=True)
class BlockResults:
    """What the ranks' parts of a block return, by rank."""

    outputs: RankValues  #: each rank's part
    caches: Sequence[RankValues]  #: keys and values, updated
    taps: Sequence[RankValues]


def expand_block(
    name: str, block: TracedBlock, inputs: Sequence[RankValues], supply: Supplier, at: ir.InsertionPoint
) -> BlockResults:
    """Call the block's part on every rank; `inputs` are the rank's values of `block.used_inputs`."""
    ranks = range(len(inputs))
    arguments = [[*inputs[rank], *_own_tensors(name, block, rank, supply, at)] for rank in ranks]
    if block.spread:
        results = _inline_on_all_ranks(block.spread, arguments, at)
    else:
        results = [_call(block, values, at) for values in arguments]
    end = 1 + len(block.cache)
    return BlockResults(
        [part[0] for part in results], [part[1:end] for part in results], [part[end:] for part in results]
    )


def _own_tensors(name: str, block: TracedBlock, rank: int, supply: Supplier, at: ir.InsertionPoint) -> list[ir.Value]:
    """Return the arguments that a rank's part takes beside its inputs."""
    prefix = f"{name}." if name else ""
    offset = [mlir_ops.constant(torch.tensor(rank * block.rows), at)] if block.rows else []
    weights = [
        supply(RequiredTensor("weight", f"{prefix}{weight}", rank, meta))
        for weight, meta in zip(block.weights, block.metas, strict=True)
    ]
    cache = [
        supply(RequiredTensor("cache", f"{prefix}{part}", rank, meta))
        for part, meta in zip(("key", "value"), block.cache, strict=False)
    ]
    return [*offset, *weights, *cache]


def _call(block: TracedBlock, arguments: list[ir.Value], at: ir.InsertionPoint) -> list[ir.Value]:
    results = list(map(mlir_ops.tensor_type, (block.part_output, *block.cache, *block.taps.values())))
    return list(emit("util.call", at, arguments, results, callee=ir.FlatSymbolRefAttr.get(block.symbol)).results)


def _inline_on_all_ranks(
    function: ir.Operation, rank_arguments: list[list[ir.Value]], at: ir.InsertionPoint
) -> list[list[ir.Value]]:
    """Inline the function once for each rank, operation by operation, so that ranks can sum in between; erase it."""
    body = function.regions[0].blocks[0]
    ranks = [dict(zip(body.arguments, arguments, strict=True)) for arguments in rank_arguments]
    for op in mlir_ops.operations(function)[:-1]:
        if op.name == "func.call":
            totals = sum_everywhere([values[op.operands[0]] for values in ranks], at)
            for values, total in zip(ranks, totals, strict=True):
                values[op.results[0]] = total
        else:
            for values in ranks:
                copies = mlir_ops.copy(op, partial(_value_in, values), at)
                values.update(zip(op.results, copies, strict=True))
    results = [[values[result] for result in mlir_ops.operations(function)[-1].operands] for values in ranks]
    function.erase()
    return results


def _value_in(values: dict[ir.Value, ir.Value], value: ir.Value) -> ir.Value:
    return values.get(value, value)
