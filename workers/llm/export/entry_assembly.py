"""Assembling an entry point: its function gives layers and blocks what they take, and loads and stores the globals.

What is outside of the layers and blocks is computed on rank 0, which has the arguments. What follows from the residual
stream, and is to be on other ranks, they compute themselves: the last norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.block_expansion import RequiredTensor, expand_block
from workers.llm.export.layer_assembly import stub_calls
from workers.llm.export.mlir_ops import emit
from workers.llm.export.program_globals import ProgramGlobals
from workers.llm.export.residual_stream import RankValues, concat_at_home
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.export.taps import TapOutput
from workers.llm.export.tracing import TracedBlock, TracedLayer, TracedProgram
from workers.llm.sharding.split_styles import Join

STREAM, INPUT = "stream", "input"  #: what a value follows from, beside weights and constants


@dataclass(frozen=True)
class LayerFunction:
    """An assembled function of a layer: what it takes beside the residual stream, and what it returns beside it."""

    function: ir.Operation
    required: list[RequiredTensor]
    taps: list[TapOutput]


class EntryPointAssembler:
    """Completes the public function of one entry point."""

    def __init__(
        self,
        function: ir.Operation,
        program: TracedProgram,
        layers: Mapping[str, LayerFunction],
        tensors: ProgramGlobals,
    ) -> None:
        self.taps = [TapOutput(name) for name in program.taps]  #: results after the entry point's own
        self._function = function
        self._program = program
        self._stream = program.stream
        self._layers = layers
        self._tensors = tensors
        self._body = function.regions[0].blocks[0]
        self._arguments = {value: index for index, value in enumerate(self._body.arguments)}
        self._streams: dict[
            ir.Value, tuple[RankValues, TensorMeta]
        ] = {}  #: with their whole shape, by results of stubs
        self._gathered: dict[ir.Value, RankValues] = {}  #: all of a stream on each rank
        self._sent: dict[tuple[int, ir.Value], ir.Value] = {}
        self._on_ranks: dict[tuple[int, ir.Value], ir.Value] = {}  #: of other ranks
        self._sources: dict[ir.Value, frozenset[str]] = {}
        self._tapped: list[ir.Value] = []

    def run(self) -> None:
        """Replace all calls of stubs, store the returned caches, and load weights from globals."""
        calls = list(stub_calls(self._function))
        first = next((op for op, name in calls if name in self._program.layers), None)
        if first is not None and self._stream.tp > 1:
            self._delay_embeddings(first)
        for op, name in calls:
            if name in self._program.layers:
                self._call_layer(op, name, self._program.layers[name])
            else:
                self._call_block(op, name, self._program.blocks[name])
        for op, _ in reversed(calls):
            self._replace(op)
        self._load_weights()
        if self._tapped:
            mlir_ops.replace_return(self._function, self._tapped)
        mlir_ops.renew_type(self._function)
        if self._stream.tp > 1:
            home = ir.DictAttr.get({"iree.abi.affinity": mlir_ops.device(0)})
            results = mlir_ops.result_types(self._function)
            self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([home] * len(self._program.inputs))
            self._function.attributes["res_attrs"] = ir.ArrayAttr.get([home] * len(results))

    def _delay_embeddings(self, first: ir.Operation) -> None:
        """Move what only the first layer's hidden states follow from behind all else, and into a step of its own.

        Masks and rotary tables, which are traced behind the embeddings, are sent a step before them. And nothing shares
        the embeddings' memory: where ranks differ in that, IREE 3.13 gives each layer the sizes of rank 0 (see
        `CacheLayout.clear_of`).
        """
        late: list[ir.Operation] = []
        for op in reversed(mlir_ops.operations(self._function)):
            if op.is_before_in_block(first) and all(
                use.owner in late or (use.owner == first and use.operand_number == 0)
                for result in op.results
                for use in result.uses
            ):
                late.append(op)
        mlir_ops.end_step(ir.InsertionPoint(first))
        for op in reversed(late):
            op.move_before(first)

    def _call_layer(self, op: ir.Operation, name: str, layer: TracedLayer) -> None:
        at, callee, tp = ir.InsertionPoint(op), self._layers[layer.symbol], self._stream.tp
        hidden, whole = self._stream_of(op.operands[0], layer.call.output, at), layer.call.output
        extra = [self._supply(tensor, name, op, at) for tensor in callee.required]
        types = mlir_ops.result_types(callee.function)
        symbol = ir.FlatSymbolRefAttr.get(layer.symbol)
        results = list(emit("util.call", at, [*hidden, *extra], types, callee=symbol).results)
        self._streams[op.results[0]] = (results[:tp], whole)
        caches = [tensor for tensor in callee.required if tensor.kind == "cache"]
        first = tp + len(layer.taps)
        for tensor, value in zip(caches, results[first:], strict=False):
            self._tensors.store_cache(value, f"{name}.{tensor.name}", tensor.rank, tensor.meta, at)
        self.taps += [TapOutput(f"{name}.{tap.module}", tap.rank) for tap in callee.taps]
        self._tapped += [*results[tp:first], *results[first + len(caches) :]]

    def _call_block(self, op: ir.Operation, name: str, block: TracedBlock) -> None:
        at, whole = ir.InsertionPoint(op), block.call.output
        inputs = [
            [self._on_rank(rank, op.operands[index], at) for index in block.used_inputs]
            for rank in range(self._stream.tp)
        ]
        outputs = expand_block("", block, inputs, lambda tensor: self._supply(tensor, name, op, at), at).outputs
        if block.join is Join.SUM:
            self._streams[op.results[0]] = (self._stream.sum(outputs, whole, at), whole)
        else:
            op.results[0].replace_all_uses_with(concat_at_home(outputs, at))

    def _stream_of(self, hidden: ir.Value, whole: TensorMeta, at: ir.InsertionPoint) -> RankValues:
        """Return the residual stream that the first layer, or a later one, is given."""
        if hidden in self._streams:
            return self._streams[hidden][0]
        if STREAM in self._sources_of(hidden):
            return self._stream.take([self._on_rank(rank, hidden, at) for rank in range(self._stream.tp)], whole, at)
        return self._stream.spread(hidden, whole, at)

    def _on_rank(self, rank: int, value: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Return what a traced value is on a rank."""
        if value in self._streams:
            return self._gather(value)[rank]
        if rank == 0 or not self._is_traced(value):
            return value
        if (rank, value) not in self._on_ranks:
            self._on_ranks[rank, value] = self._bring(rank, value, at)
        return self._on_ranks[rank, value]

    def _bring(self, rank: int, value: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Send a value that follows from the program's inputs to another rank; compute it there otherwise."""
        sources = self._sources_of(value)
        if INPUT in sources and STREAM not in sources:
            return mlir_ops.transfer(value, rank, at)
        if value in self._arguments:
            index = self._arguments[value] - len(self._program.inputs)
            return self._weight(index, rank, at)
        op = value.owner.operation
        results = mlir_ops.copy(op, lambda operand: self._on_rank(rank, operand, at), at)
        self._on_ranks.update(((rank, old), new) for old, new in zip(op.results, results, strict=True))
        return self._on_ranks[rank, value]

    def _gather(self, result: ir.Value) -> RankValues:
        """Return all of the residual stream that a stub yields, on every rank."""
        if result not in self._gathered:
            at = ir.InsertionPoint(result.owner.operation)
            self._gathered[result] = self._stream.gather_everywhere(*self._streams[result], at)
        return self._gathered[result]

    def _sources_of(self, value: ir.Value) -> frozenset[str]:
        """Return what a traced value follows from."""
        if value not in self._sources:
            if value in self._streams:
                self._sources[value] = frozenset({STREAM})
            elif value in self._arguments:
                is_input = self._arguments[value] < len(self._program.inputs)
                self._sources[value] = frozenset({INPUT} if is_input else ())
            elif not self._is_traced(value):
                return frozenset()
            else:
                operands = mlir_ops.operands_within(value.owner.operation)
                self._sources[value] = frozenset().union(*map(self._sources_of, operands))
        return self._sources[value]

    def _is_traced(self, value: ir.Value) -> bool:
        """Return whether a value is the function's own, and not one within an operation's region."""
        owner = value.owner
        return bool(owner == self._body if isinstance(owner, ir.Block) else owner.operation.parent == self._function)

    def _replace(self, op: ir.Operation) -> None:
        """Give the result of a stub to what reads it on rank 0, and drop the stub; those behind it are gone already."""
        result = op.results[0]
        if mlir_ops.is_used(result):
            at = ir.InsertionPoint(op)
            values = self._gathered.get(result) or [self._stream.gather(*self._streams[result], at)]
            result.replace_all_uses_with(values[0])
        op.erase()

    def _supply(self, tensor: RequiredTensor, module: str, op: ir.Operation, at: ir.InsertionPoint) -> ir.Value:
        if tensor.kind == "input":
            return self._send_once(op.operands[int(tensor.name)], tensor.rank)
        if tensor.kind == "entry":
            return self._tensors.load(f"{module}{tensor.name}", tensor.rank, tensor.meta, at)
        name = f"{module}.{tensor.name}"
        return self._tensors.load(name, tensor.rank, tensor.meta, at, is_cache=tensor.kind == "cache")

    def _send_once(self, value: ir.Value, rank: int) -> ir.Value:
        """Return a value of rank 0 on a rank, with one transfer per value and rank.

        Rank 0 gets a transfer too: a value computed from constants alone, such as a mask, has no affinity. Without one
        IREE 3.13 cannot tell where a layer's ops run, and copies that layer's weights and cache.
        """
        if self._stream.tp == 1:
            return value
        if (rank, value) not in self._sent:
            is_argument = value in self._arguments
            after = (
                ir.InsertionPoint.at_block_begin(self._body) if is_argument else ir.InsertionPoint.after(value.owner)
            )
            self._sent[rank, value] = mlir_ops.transfer(value, rank, after)
        return self._sent[rank, value]

    def _weight(self, index: int, rank: int, at: ir.InsertionPoint) -> ir.Value:
        """Return a parameter of the root, or a constant."""
        if index < len(self._program.weights):
            return self._tensors.load(self._program.weights[index], rank, self._program.metas[index], at)
        return mlir_ops.constant(list(self._program.constants.values())[index - len(self._program.weights)], at)

    def _load_weights(self) -> None:
        """Replace the arguments that stand for weights and constants."""
        first = len(self._program.inputs)
        start = ir.InsertionPoint.at_block_begin(self._body)
        arguments = list(self._body.arguments)
        for index in reversed(range(first, len(arguments))):
            if mlir_ops.is_used(arguments[index]):
                arguments[index].replace_all_uses_with(self._weight(index - first, 0, start))
            self._body.erase_argument(index)
