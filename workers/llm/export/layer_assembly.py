"""Assembling a decoder layer's function: its own operations on every rank, around the ranks' parts of its blocks.

The function is never inlined. It takes the residual stream, by rank, and what the ranks' operations and blocks need. It
returns the residual stream, what is tapped in the layer's own parts, the updated caches, and what is tapped in blocks.
"""

from collections.abc import Iterator
from functools import partial

from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.block_expansion import RequiredTensor, expand_block
from workers.llm.export.mlir_ops import emit
from workers.llm.export.program_globals import ProgramGlobals
from workers.llm.export.residual_stream import RankValues, ResidualStream, transfer
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.export.taps import TapOutput
from workers.llm.export.tracing import STUB_CALL, TracedLayer


class LayerAssembler:
    """Turns a traced layer's function into that of all ranks; `name` is the first layer that calls it."""

    def __init__(
        self, function: ir.Operation, name: str, layer: TracedLayer, stream: ResidualStream, tensors: ProgramGlobals
    ) -> None:
        self.taps: list[TapOutput] = [TapOutput(tap) for tap in layer.taps]  #: by the layer's own names of modules
        self._function = function
        self._name = name
        self._layer = layer
        self._stream = stream
        self._tensors = tensors
        self._arguments = {value: index for index, value in enumerate(function.regions[0].blocks[0].arguments)}
        self._start = ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0])
        self._end = ir.InsertionPoint(mlir_ops.operations(function)[-1])
        self._ranks: list[dict[ir.Value, ir.Value]] = [{} for _ in range(stream.tp)]
        self._constants: dict[ir.Value, ir.Value] = {}  #: of all ranks
        self._tables: dict[tuple[int, ir.Value], ir.Value] = {}
        self._gathered: dict[ir.Value, RankValues] = {}
        self._required: dict[RequiredTensor, ir.Value] = {}
        self._weights: dict[RequiredTensor, ir.Value] = {}
        self._caches: list[ir.Value] = []
        self._tapped: list[ir.Value] = []  #: in blocks

    def run(self, is_inlined: bool) -> list[RequiredTensor]:
        """Edit the function; return the tensors that it takes beside the residual stream, in order."""
        hidden = next(iter(self._arguments))
        traced = mlir_ops.operations(self._function)
        for values in self._ranks:
            values[hidden] = mlir_ops.add_argument(self._function, hidden.type)
        for op in traced[:-1]:
            if name := stub_name(op):
                self._expand_block(op, name.removeprefix(f"{self._name}."))
            else:
                self._copy(op)
        self._replace(traced)
        if not is_inlined:
            self._function.attributes["inlining_policy"] = ir.Attribute.parse("#util.inline.never")
        mlir_ops.renew_type(self._function)
        return list(self._required)

    def _copy(self, op: ir.Operation) -> None:
        """Repeat an operation on every rank, but for what follows from constants alone."""
        operands = mlir_ops.operands_within(op)
        if not any(value in self._arguments or value in self._ranks[0] for value in operands):
            results = mlir_ops.copy(op, lambda value: self._constants.get(value, value), self._end)
            self._constants.update(zip(op.results, results, strict=True))
            return
        for rank, values in enumerate(self._ranks):
            results = mlir_ops.copy(op, partial(self._on_rank, rank), self._end)
            values.update(zip(op.results, results, strict=True))

    def _expand_block(self, op: ir.Operation, name: str) -> None:
        block, tp = self._layer.blocks[name], self._stream.tp
        inputs = [
            self._gather(op.operands[index], block.call.inputs[index])
            if index in block.shares
            else [self._on_rank(rank, op.operands[index]) for rank in range(tp)]
            for index in block.used_inputs
        ]
        by_rank = [[values[rank] for values in inputs] for rank in range(tp)]
        results = expand_block(name, block, by_rank, self._supply, self._end)
        outputs = self._stream.sum(results.outputs, block.call.output, self._end)
        for values, output in zip(self._ranks, outputs, strict=True):
            values[op.results[0]] = output
        self._caches += [cache for caches in results.caches for cache in caches]
        for rank, taps in enumerate(results.taps):
            self.taps += [TapOutput(f"{name}.{tap}", rank) for tap in block.taps]
            self._tapped += [transfer(tap, rank, 0, self._end) for tap in taps]

    def _gather(self, traced: ir.Value, whole: TensorMeta) -> RankValues:
        """Return all tokens of what ranks have shares of; two blocks may take the same."""
        if traced not in self._gathered:
            shares = [self._on_rank(rank, traced) for rank in range(self._stream.tp)]
            self._gathered[traced] = self._stream.gather_everywhere(shares, whole, self._end)
        return self._gathered[traced]

    def _replace(self, traced: list[ir.Operation]) -> None:
        """Return the ranks' values, and drop the traced operations and arguments."""
        hidden, *tapped = traced[-1].operands
        outputs = [self._on_rank(rank, hidden) for rank in range(self._stream.tp)]
        taps = [self._tap(value) for value in tapped]
        emit("util.return", self._end, [*outputs, *taps, *self._caches, *self._tapped])
        for op in reversed(traced):
            op.erase()
        for index in reversed(range(len(self._arguments))):
            self._function.regions[0].blocks[0].erase_argument(index)

    def _tap(self, traced: ir.Value) -> ir.Value:
        values = [self._on_rank(rank, traced) for rank in range(self._stream.tp)]
        return self._stream.gather(values, self._stream.whole_meta(mlir_ops.meta_of(values[0])), self._end)

    def _on_rank(self, rank: int, traced: ir.Value) -> ir.Value:
        """Return what a traced value is on a rank."""
        values = self._ranks[rank]
        if traced in self._constants:
            return self._constant(rank, traced)
        if traced not in values and traced in self._arguments:
            values[traced] = self._supply(self._argument(self._arguments[traced], rank, mlir_ops.meta_of(traced)))
        return values.get(traced, traced)

    def _constant(self, rank: int, traced: ir.Value) -> ir.Value:
        """Return a value that follows from constants; IREE 3.13 computes a table once, and must know where it is used.

        Otherwise it cannot tell where the layer's operations run, and copies caches.
        """
        value = self._constants[traced]
        if self._stream.tp == 1 or value.owner.name != "linalg.generic":
            return value
        if (rank, traced) not in self._tables:
            self._tables[rank, traced] = mlir_ops.transfer(value, rank, self._end)
        return self._tables[rank, traced]

    def _argument(self, index: int, rank: int, meta: TensorMeta) -> RequiredTensor:
        inputs = len(self._layer.call.inputs)
        if index < inputs:
            return RequiredTensor("input", str(index), rank, meta)
        return RequiredTensor("weight", self._layer.weights[index - inputs], rank, meta)

    def _supply(self, required: RequiredTensor) -> ir.Value:
        """Return a tensor's value; a weight is a slice of the archive entry that the function takes."""
        if required.kind != "weight":
            return self._take(required)
        if required not in self._weights:
            slot = self._tensors.slot(f"{self._name}.{required.name}", required.rank)
            entry_name, meta = slot.entry.removeprefix(self._name), self._tensors.entry_meta(slot, required.rank)
            entry = self._take(RequiredTensor("entry", entry_name, required.rank, meta))
            self._weights[required] = mlir_ops.slice_of(entry, slot.offset_bytes, required.meta, self._start)
        return self._weights[required]

    def _take(self, required: RequiredTensor) -> ir.Value:
        """Return the function's argument for a tensor."""
        if required not in self._required:
            argument = mlir_ops.add_argument(self._function, mlir_ops.tensor_type(required.meta))
            self._required[required] = argument
        return self._required[required]


def stub_calls(function: ir.Operation) -> Iterator[tuple[ir.Operation, str]]:
    """Yield the calls in `function` that still stand for a stub, with the name of its module."""
    for op in mlir_ops.operations(function):
        if name := stub_name(op):
            yield op, name


def stub_name(op: ir.Operation) -> str | None:
    """Return the name of the module for whose stub an operation stands, if it does for one."""
    if op.name != "func.call":
        return None
    symbol: str = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    return symbol.removeprefix(STUB_CALL).partition(":")[2]
