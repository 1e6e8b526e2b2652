"""Assembling a program: lowered subgraphs become one module for `tp` devices.

Each decoder layer is a `util.func` that is never inlined. It takes what its blocks need (for every rank, where all
layers share a value, such as mask, rotary tables and positions), sends the hidden states to every rank, calls each
rank's part of a block and joins the results. The entry point's function owns the parameters and the cache, which are
globals.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.block_expansion import RequiredTensor, expand_block_call
from workers.llm.export.global_tensors import GlobalTensor
from workers.llm.export.mlir_ops import emit
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.export.taps import TapOutput
from workers.llm.export.tracing import STUB_CALL, TracedBlock, TracedLayer, TracedProgram
from workers.llm.weights.archive_layout import ArchiveLayout, ParameterSlot
from workers.llm.weights.parameters import symbol_of


class ProgramAssembler:
    """Edits `module` in place; the module's context and a location must be entered.

    `tied` maps parameters to the name under which they are stored; `archives` are the layouts of the ranks' archives.
    """

    def __init__(
        self, module: ir.Module, tied: dict[str, str], archives: Sequence[ArchiveLayout], *, is_inlined: bool = False
    ) -> None:
        self.module = module
        self.tp = len(archives)
        self.tied = tied
        self.archives = archives
        self.is_inlined = is_inlined  #: layers may be, which are functions of their own else
        self.globals: dict[str, GlobalTensor] = {}
        self.functions: dict[str, ir.Operation] = {}
        self.layer_taps: dict[str, list[TapOutput]] = {}  #: by symbol, with the layer's own names of modules
        self.taps: dict[str, list[TapOutput]] = {}  #: results of each entry point after its logits

    def run(self, programs: Iterable[TracedProgram]) -> None:
        """Turn all subgraphs of `programs` into one program."""
        self.functions = _convert_functions(self.module)
        for program in programs:
            self._drop_unused_inputs(program)
            # a function is assembled for the first layer that calls it; in the others the weights lie alike
            first_layers = {layer.symbol: name for name, layer in reversed(program.layers.items())}
            required = {symbol: _LayerAssembler(self, program, name).run() for symbol, name in first_layers.items()}
            _EntryPointAssembler(self, program).run(required)
        at = ir.InsertionPoint.at_block_begin(self.module.body)
        for tensor in self.globals.values():
            tensor.declare(at)

    def _drop_unused_inputs(self, program: TracedProgram) -> None:
        """Remove the inputs that a block never reads, so that they are not sent to it."""
        for block in {block.symbol: block for block in program.all_blocks()}.values():
            function = self.functions[block.symbol]
            body = function.regions[0].blocks[0]
            used = [mlir_ops.is_used(argument) for argument in body.arguments][: len(block.call.inputs)]
            for index in reversed(range(len(used))):
                if not used[index]:
                    body.erase_argument(index)
            block.used_inputs = tuple(index for index, is_used in enumerate(used) if is_used)
            mlir_ops.renew_type(function)
            if stub_calls(function):
                block.spread = function

    def slot(self, name: str, rank: int) -> ParameterSlot:
        """Return where a parameter lies in a rank's archive."""
        return self.archives[rank].slots[self.tied.get(name, name)]

    def entry_meta(self, slot: ParameterSlot, rank: int) -> TensorMeta:
        """Return the flat tensor of the whole archive entry that a parameter lies in."""
        archive = self.archives[rank]
        dtype = archive.types[slot.entry] or torch.uint8
        return TensorMeta((archive.sizes[slot.entry] // dtype.itemsize,), dtype)

    def global_for(self, name: str, rank: int, meta: TensorMeta, is_cache: bool = False) -> GlobalTensor:
        """Return the global that holds the tensor `name` on `rank`; it is created on first use."""
        symbol = f"{'cache.' if is_cache else ''}{symbol_of(self.tied.get(name, name), rank)}"
        if symbol not in self.globals:
            caches = sum(tensor.cache_number is not None for tensor in self.globals.values())
            self.globals[symbol] = GlobalTensor(symbol, rank, meta, caches + 1 if is_cache else None)
        return self.globals[symbol]


class _LayerAssembler:
    """Extends a decoder layer's function to all ranks; `name` is the first layer that calls it."""

    def __init__(self, owner: ProgramAssembler, program: TracedProgram, name: str) -> None:
        self._owner = owner
        self._name = name
        self._layer = program.layers[name]
        self._function = owner.functions[self._layer.symbol]
        self._body = self._function.regions[0].blocks[0]
        self._arguments = list(self._body.arguments)
        self._shared = _shared_inputs(owner.functions[program.entry.name], program, self._layer)
        self._start = ir.InsertionPoint.at_block_begin(self._body)
        self._required: dict[RequiredTensor, ir.Value] = {}
        self._weights: dict[RequiredTensor, ir.Value] = {}

    def run(self) -> list[RequiredTensor]:
        """Expand the layer's blocks; return the tensors that the function takes beyond its inputs, in order."""
        layer, first = self._layer, len(self._layer.call.inputs)
        updated: list[ir.Value] = []
        tapped: list[ir.Value] = []
        taps = [TapOutput(name) for name in layer.taps]
        for op, site in stub_calls(self._function):
            block = site.removeprefix(f"{self._name}.")
            traced = layer.blocks[block]
            caches, values = expand_block_call(op, block, traced, self._owner.tp, self._supply, self._send)
            updated, tapped = [*updated, *caches], [*tapped, *values]
            taps += [TapOutput(f"{block}.{name}", rank) for rank in range(self._owner.tp) for name in traced.taps]
        self._owner.layer_taps[layer.symbol] = taps
        for argument, weight, meta in zip(self._arguments[first:], layer.weights, layer.metas, strict=True):
            argument.replace_all_uses_with(self._supply(RequiredTensor("weight", weight, 0, meta)))
        for index in reversed(range(first, len(self._arguments))):
            self._body.erase_argument(index)
        mlir_ops.replace_return(self._function, [*updated, *tapped])
        if not self._owner.is_inlined:
            self._function.attributes["inlining_policy"] = ir.Attribute.parse("#util.inline.never")
        mlir_ops.renew_type(self._function)
        return list(self._required)

    def _take(self, required: RequiredTensor) -> ir.Value:
        """Return the function's argument for a tensor."""
        if required not in self._required:
            argument = mlir_ops.add_argument(self._function, mlir_ops.tensor_type(required.meta))
            self._required[required] = argument
        return self._required[required]

    def _supply(self, required: RequiredTensor) -> ir.Value:
        """Return a tensor's value; a weight is a slice of the archive entry that the function takes."""
        if required.kind != "weight":
            return self._take(required)
        if required not in self._weights:
            slot = self._owner.slot(f"{self._name}.{required.name}", required.rank)
            entry_name, meta = slot.entry.removeprefix(self._name), self._owner.entry_meta(slot, required.rank)
            entry = self._take(RequiredTensor("entry", entry_name, required.rank, meta))
            self._weights[required] = mlir_ops.slice_of(entry, slot.offset_bytes, required.meta, self._start)
        return self._weights[required]

    def _send(self, value: ir.Value, meta: TensorMeta, rank: int, at: ir.InsertionPoint) -> ir.Value:
        """Return the value on another rank: an argument, where all layers share it."""
        index = next((index for index in self._shared if self._arguments[index] == value), None)
        if index is None:
            return mlir_ops.transfer(value, rank, at)
        return self._take(RequiredTensor("input", str(index), rank, meta))


class _EntryPointAssembler:
    """Completes the public function of one entry point."""

    def __init__(self, owner: ProgramAssembler, program: TracedProgram) -> None:
        self._owner = owner
        self._program = program
        self._function = owner.functions[program.entry.name]
        self._sent: list[tuple[ir.Value, int, ir.Value]] = []
        self._tapped: list[ir.Value] = []
        self._taps = [TapOutput(name) for name in program.taps]

    def run(self, required: dict[str, list[RequiredTensor]]) -> None:
        """Give every call its operands, store the returned cache, and load weights from globals.

        `required` are the tensors that each layer's function takes, by its symbol.
        """
        for op, name in stub_calls(self._function):
            if name in self._program.layers:
                layer = self._program.layers[name]
                self._call_layer(op, name, layer, required[layer.symbol])
            else:
                self._expand_block(op, name, self._program.blocks[name])
        self._load_weights()
        if self._tapped:
            mlir_ops.replace_return(self._function, self._tapped)
        mlir_ops.renew_type(self._function)
        self._owner.taps[self._program.entry.name] = self._taps
        if self._owner.tp > 1:
            home = ir.DictAttr.get({"iree.abi.affinity": mlir_ops.device(0)})
            self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([home] * len(self._program.inputs))
            results = len(mlir_ops.operations(self._function)[-1].operands)
            self._function.attributes["res_attrs"] = ir.ArrayAttr.get([home] * results)

    def _call_layer(self, op: ir.Operation, name: str, layer: TracedLayer, required: list[RequiredTensor]) -> None:
        at = ir.InsertionPoint(op)
        hidden, *shared = op.operands
        inputs = [hidden, *(self._send_once(value, 0, at) for value in shared)]
        extra = [self._supply(tensor, name, inputs, at) for tensor in required]
        caches = [tensor for tensor in required if tensor.kind == "cache"]
        callee = ir.FlatSymbolRefAttr.get(layer.symbol)
        results = mlir_ops.result_types(self._owner.functions[layer.symbol])
        call = emit("util.call", at, [*inputs, *extra], results, callee=callee)
        first, taps = 1 + len(layer.taps), self._owner.layer_taps[layer.symbol]
        self._taps += [TapOutput(f"{name}.{tap.module}", tap.rank) for tap in taps]
        self._tapped += [*list(call.results)[1:first], *list(call.results)[first + len(caches) :]]
        for tensor, value in zip(caches, list(call.results)[first : first + len(caches)], strict=True):
            cache = self._owner.global_for(f"{name}.{tensor.name}", tensor.rank, tensor.meta, is_cache=True)
            stored = value if cache.stored == cache.meta else mlir_ops.bitcast(value, cache.stored, at)
            emit("util.global.store", at, [stored], **{"global": ir.FlatSymbolRefAttr.get(cache.symbol)})
        op.results[0].replace_all_uses_with(call.results[0])
        op.erase()

    def _expand_block(self, op: ir.Operation, name: str, block: TracedBlock) -> None:
        at = ir.InsertionPoint(op)

        def send(value: ir.Value, _meta: TensorMeta, rank: int, where: ir.InsertionPoint) -> ir.Value:
            return mlir_ops.transfer(value, rank, where)

        expand_block_call(op, "", block, self._owner.tp, lambda tensor: self._supply(tensor, name, [], at), send)

    def _supply(self, tensor: RequiredTensor, module: str, inputs: list[ir.Value], at: ir.InsertionPoint) -> ir.Value:
        if tensor.kind == "input":
            return self._send_once(inputs[int(tensor.name)], tensor.rank, at)
        if tensor.kind == "entry":
            return self._load(f"{module}{tensor.name}", tensor.rank, tensor.meta, at)
        return self._load(f"{module}.{tensor.name}", tensor.rank, tensor.meta, at, tensor.kind == "cache")

    def _send_once(self, value: ir.Value, rank: int, at: ir.InsertionPoint) -> ir.Value:
        """Return the value on a rank, with one transfer per value and rank.

        Rank 0 gets a transfer too: a value computed from constants alone, such as a mask, has no affinity. Without one
        IREE 3.13 cannot tell where a layer's ops run, and copies that layer's weights and cache.
        """
        if self._owner.tp == 1:
            return value
        for source, to, transferred in self._sent:
            if to == rank and source == value:
                return transferred
        transferred = mlir_ops.transfer(value, rank, at)
        self._sent.append((value, rank, transferred))
        return transferred

    def _load(self, name: str, rank: int, meta: TensorMeta, at: ir.InsertionPoint, is_cache: bool = False) -> ir.Value:
        tensor = self._owner.global_for(name, rank, meta, is_cache)
        symbol = ir.FlatSymbolRefAttr.get(tensor.symbol)
        stored_type = mlir_ops.tensor_type(tensor.stored)
        value = emit("util.global.load", at, results=[stored_type], **{"global": symbol}).result
        return value if tensor.stored == meta else mlir_ops.bitcast(value, meta, at)

    def _load_weights(self) -> None:
        """Replace the arguments that stand for weights and constants."""
        body = self._function.regions[0].blocks[0]
        at = ir.InsertionPoint.at_block_begin(body)
        first = len(self._program.inputs)
        arguments = list(body.arguments)[first:]
        weights = zip(self._program.weights, self._program.metas, strict=True)
        values = [
            *(partial(self._load, name, 0, meta, at) for name, meta in weights),
            *(partial(mlir_ops.constant, buffer, at) for buffer in self._program.constants.values()),
        ]
        for argument, make in zip(arguments, values, strict=True):
            if mlir_ops.is_used(argument):
                argument.replace_all_uses_with(make())
        for index in reversed(range(first, len(body.arguments))):
            body.erase_argument(index)


def stub_calls(function: ir.Operation) -> list[tuple[ir.Operation, str]]:
    """Return the calls in `function` that still stand for a stub, with the name of its module."""
    calls = []
    for op in mlir_ops.operations(function):
        if op.name == "func.call":
            symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            calls.append((op, symbol.removeprefix(STUB_CALL).partition(":")[2]))
    return calls


def _convert_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """Turn func.func into util.func, which supports an inlining policy, and drop the declarations of stub calls."""
    functions = {}
    for view in list(module.body.operations):
        old = view.operation
        if old.name != "func.func":  # a kernel, which is a util.func already
            continue
        symbol = ir.StringAttr(old.attributes["sym_name"]).value
        if not symbol.startswith(STUB_CALL):
            functions[symbol] = _as_util_function(module, old, symbol)
        old.erase()
    return functions


def _as_util_function(module: ir.Module, old: ir.Operation, symbol: str) -> ir.Operation:
    attributes = {"sym_name": ir.StringAttr.get(symbol), "function_type": old.attributes["function_type"]}
    if "." in symbol:  # a subgraph; entry points are public
        attributes["sym_visibility"] = ir.StringAttr.get("private")
    new = emit("util.func", ir.InsertionPoint(module.body), regions=1, **attributes)
    old.regions[0].blocks[0].append_to(new.regions[0])
    mlir_ops.replace_return(new, [])
    return new


def _shared_inputs(root: ir.Operation, program: TracedProgram, layer: TracedLayer) -> list[int]:
    """Return the indices of inputs that are the same value in every call of the layer; they are sent to ranks once."""
    calls = [list(op.operands) for op, name in stub_calls(root) if program.layers.get(name) is layer]
    return [i for i in range(1, len(calls[0])) if all(call[i] == calls[0][i] for call in calls)]
