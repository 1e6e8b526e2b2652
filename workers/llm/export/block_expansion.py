"""Expanding the call of a block to all ranks: send inputs, call each rank's part, join the results on rank 0."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.mlir_ops import emit
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.export.tracing import TracedBlock
from workers.llm.sharding.split_styles import Join


@dataclass(frozen=True)
class RequiredTensor:
    """A tensor that a function needs on `rank`."""

    kind: str  #: "input", "weight", "cache", or "entry": the archive entry that a weight lies in
    name: str  #: the index of an input; of the others the name relative to the layer
    rank: int
    meta: TensorMeta


Supplier = Callable[[RequiredTensor], ir.Value]
Sender = Callable[[ir.Value, TensorMeta, int, ir.InsertionPoint], ir.Value]


def expand_block_call(
    op: ir.Operation, name: str, block: TracedBlock, tp: int, supply: Supplier, send: Sender
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Replace the call `op` of a stub with calls of the block's part on every rank.

    Returns the updated caches, and what is tapped on each rank, which is sent to rank 0.
    """
    at = ir.InsertionPoint(op)
    operands = list(op.operands)
    arguments = [_arguments(at, operands, name, block, rank, supply, send) for rank in range(tp)]
    if block.spread:
        results = _inline_on_all_ranks(block.spread, arguments, at)
    else:
        results = [_call(block, values, at) for values in arguments]
    outputs = [mlir_ops.transfer(part[0], 0, at) if rank else part[0] for rank, part in enumerate(results)]
    op.results[0].replace_all_uses_with(join_parts(outputs, block.join, block.call.output, at))
    end = 1 + len(block.cache)
    taps = [mlir_ops.transfer(tap, 0, at) if rank else tap for rank, part in enumerate(results) for tap in part[end:]]
    op.erase()
    return [cache for part in results for cache in part[1:end]], taps


def _arguments(
    at: ir.InsertionPoint,
    operands: list[ir.Value],
    name: str,
    block: TracedBlock,
    rank: int,
    supply: Supplier,
    send: Sender,
) -> list[ir.Value]:
    prefix = f"{name}." if name else ""
    inputs = [
        operands[i] if rank == 0 else send(operands[i], block.call.inputs[i], rank, at) for i in block.used_inputs
    ]
    if block.rows:
        inputs.append(mlir_ops.constant(torch.tensor(rank * block.rows), at))
    weights = [
        supply(RequiredTensor("weight", f"{prefix}{weight}", rank, meta))
        for weight, meta in zip(block.weights, block.metas, strict=True)
    ]
    cache = [
        supply(RequiredTensor("cache", f"{prefix}{part}", rank, meta))
        for part, meta in zip(("key", "value"), block.cache, strict=False)
    ]
    return [*inputs, *weights, *cache]


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
            _sum_over_ranks(op, ranks, at)
        else:
            for values in ranks:
                mlir_ops.copy(op, values, at)
    results = [[values[result] for result in mlir_ops.operations(function)[-1].operands] for values in ranks]
    function.erase()
    return results


def _sum_over_ranks(op: ir.Operation, ranks: list[dict[ir.Value, ir.Value]], at: ir.InsertionPoint) -> None:
    """Sum on every rank by itself: a sum on rank 0 that is sent back makes a chain too long for iree-compile 3.13."""
    parts, meta = [values[op.operands[0]] for values in ranks], mlir_ops.meta_of(op.results[0])
    totals = []
    for rank in range(len(ranks)):
        sent = [part if source == rank else mlir_ops.transfer(part, rank, at) for source, part in enumerate(parts)]
        totals.append(join_parts(sent, Join.SUM, meta, at))
    for values, total in zip(ranks, totals, strict=True):
        values[op.results[0]] = total


def join_parts(parts: list[ir.Value], how: Join, whole: TensorMeta, at: ir.InsertionPoint) -> ir.Value:
    """Combine the ranks' parts, all of which are on one rank, into one tensor."""
    if len(parts) == 1:
        return parts[0]
    if how is Join.CONCAT:
        dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(whole.shape) - 1)
        return emit("tensor.concat", at, parts, [mlir_ops.tensor_type(whole)], dim=dim).result
    return _sum(parts, whole, at)


def _sum(parts: list[ir.Value], whole: TensorMeta, at: ir.InsertionPoint) -> ir.Value:
    """Sum in f32, whatever the dtype: eight f16 roundings would show in the logits."""
    is_narrow = whole.dtype != torch.float32
    wide = mlir_ops.tensor_type(TensorMeta(whole.shape, torch.float32))
    if is_narrow:
        parts = [emit("arith.extf", at, [part], [wide]).result for part in parts]
    total = parts[0]
    for part in parts[1:]:
        total = emit("arith.addf", at, [total, part], [wide]).result
    return emit("arith.truncf", at, [total], [mlir_ops.tensor_type(whole)]).result if is_narrow else total
