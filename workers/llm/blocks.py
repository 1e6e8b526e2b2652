"""One block on all ranks: send the inputs, call each rank's part, join what comes back on rank 0."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from iree.compiler import ir

from workers.llm import mlir
from workers.llm.mlir import emit
from workers.llm.pieces import Meta
from workers.llm.split_styles import Join
from workers.llm.tracing import Block


@dataclass(frozen=True)
class Need:
    """A tensor that a function is to have on `rank`: an "input", a "weight", the "entry" it lies in, or a "cache"."""

    kind: str
    name: str  #: of the input its index, of the others their name relative to the layer
    rank: int
    meta: Meta


Supplier = Callable[[Need], ir.Value]
Sender = Callable[[ir.Value, Meta, int, ir.InsertionPoint], ir.Value]


def expand(op: ir.Operation, name: str, block: Block, tp: int, supply: Supplier, send: Sender) -> list[ir.Value]:
    """Replace the call `op` of a stub by calls of the block's part on every rank; returns the updated cache tensors."""
    at = ir.InsertionPoint(op)
    operands = list(op.operands)
    given = [_arguments(at, operands, name, block, rank, supply, send) for rank in range(tp)]
    results = _run_together(block.spread, given, at) if block.spread else [_call(block, each, at) for each in given]
    outputs = [mlir.transfer(part[0], 0, at) if rank else part[0] for rank, part in enumerate(results)]
    op.results[0].replace_all_uses_with(join(outputs, block.join, block.call.output, at))
    op.erase()
    return [cache for part in results for cache in part[1:]]


def _arguments(
    at: ir.InsertionPoint,
    operands: list[ir.Value],
    name: str,
    block: Block,
    rank: int,
    supply: Supplier,
    send: Sender,
) -> list[ir.Value]:
    prefix = f"{name}." if name else ""
    inputs = [
        operands[i] if rank == 0 else send(operands[i], block.call.inputs[i], rank, at) for i in block.used_inputs
    ]
    if block.rows:
        inputs.append(mlir.constant(torch.tensor(rank * block.rows), at))
    weights = [
        supply(Need("weight", f"{prefix}{weight}", rank, meta))
        for weight, meta in zip(block.weights, block.metas, strict=True)
    ]
    cache = [
        supply(Need("cache", f"{prefix}{part}", rank, meta))
        for part, meta in zip(("key", "value"), block.cache, strict=False)
    ]
    return [*inputs, *weights, *cache]


def _call(block: Block, arguments: list[ir.Value], at: ir.InsertionPoint) -> list[ir.Value]:
    results = [mlir.tensor(block.part_output), *map(mlir.tensor, block.cache)]
    return list(emit("util.call", at, arguments, results, callee=ir.FlatSymbolRefAttr.get(block.symbol)).results)


def _run_together(function: ir.Operation, given: list[list[ir.Value]], at: ir.InsertionPoint) -> list[list[ir.Value]]:
    """The function's body once for each rank, step by step, so that they can add up what they have; it is used up."""
    body = function.regions[0].blocks[0]
    ranks = [dict(zip(body.arguments, arguments, strict=True)) for arguments in given]
    for op in mlir.operations(function)[:-1]:
        if op.name == "func.call":
            _sum_over_ranks(op, ranks, at)
        else:
            for values in ranks:
                mlir.copy(op, values, at)
    results = [[values[result] for result in mlir.operations(function)[-1].operands] for values in ranks]
    function.erase()
    return results


def _sum_over_ranks(op: ir.Operation, ranks: list[dict[ir.Value, ir.Value]], at: ir.InsertionPoint) -> None:
    parts = [values[op.operands[0]] for values in ranks]
    meta = mlir.meta_of(op.results[0])
    total = join([mlir.transfer(part, 0, at) if rank else part for rank, part in enumerate(parts)], Join.SUM, meta, at)
    for rank, values in enumerate(ranks):
        values[op.results[0]] = mlir.transfer(total, rank, at) if rank else total


def join(parts: list[ir.Value], how: Join, whole: Meta, at: ir.InsertionPoint) -> ir.Value:
    """Make one tensor of the ranks' parts, which are all on rank 0 by now."""
    if len(parts) == 1:
        return parts[0]
    if how is Join.CONCAT:
        dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(whole.shape) - 1)
        return emit("tensor.concat", at, parts, [mlir.tensor(whole)], dim=dim).result
    return _sum(parts, whole, at)


def _sum(parts: list[ir.Value], whole: Meta, at: ir.InsertionPoint) -> ir.Value:
    """Add up in f32, whatever the type: eight f16 roundings would be seen in the logits."""
    is_narrow = whole.dtype != torch.float32
    wide = mlir.tensor(Meta(whole.shape, torch.float32))
    if is_narrow:
        parts = [emit("arith.extf", at, [part], [wide]).result for part in parts]
    total = parts[0]
    for part in parts[1:]:
        total = emit("arith.addf", at, [total, part], [wide]).result
    return emit("arith.truncf", at, [total], [mlir.tensor(whole)]).result if is_narrow else total
