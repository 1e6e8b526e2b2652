"""Putting a program together: lowered pieces become one module for `tp` devices.

Each decoder layer is a `util.func` that is never inlined: it takes what its blocks need, once per rank where every
layer is given the same (mask, rotary tables, positions), sends the hidden states to every rank, calls each rank's part
of a block and joins what comes back. The root holds the parameters and the cache, which are globals.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from iree.compiler import ir

from workers.llm import mlir
from workers.llm.blocks import Need, Sender, expand
from workers.llm.global_tensors import Global
from workers.llm.mlir import emit
from workers.llm.packing import Packing, Slot
from workers.llm.parameters import symbol_of
from workers.llm.pieces import Meta
from workers.llm.tracing import SITE, Block, Layer, Program


class Assembler:
    """Edits `module` in place; the module's context and a location must be entered.

    `tied` names parameters that are stored under another name; `packings` say for each rank where they lie.
    """

    def __init__(self, module: ir.Module, tied: dict[str, str], packings: Sequence[Packing]) -> None:
        self.module = module
        self.tp = len(packings)
        self.tied = tied
        self.packings = packings
        self.globals: dict[str, Global] = {}
        self._functions: dict[str, ir.Operation] = {}

    def run(self, programs: Iterable[Program]) -> None:
        """Turn all pieces of `programs` into one program."""
        self._functions = _convert_functions(self.module)
        for program in programs:
            self._drop_unused_inputs(program)
            root = self._functions[program.entry.name]
            firsts = {layer.symbol: name for name, layer in reversed(program.layers.items())}
            needs = {symbol: self._assemble_layer(program, name) for symbol, name in firsts.items()}
            _RootAssembler(self, program, root).run(needs)
        at = ir.InsertionPoint.at_block_begin(self.module.body)
        for each in self.globals.values():
            each.declare(at)

    def _drop_unused_inputs(self, program: Program) -> None:
        """What a block does not read is not sent to it."""
        for block in {block.symbol: block for block in program.all_blocks()}.values():
            body = self._functions[block.symbol].regions[0].blocks[0]
            used = [mlir.is_used(argument) for argument in body.arguments][: len(block.call.inputs)]
            for index in reversed(range(len(used))):
                if not used[index]:
                    body.erase_argument(index)
            block.used_inputs = tuple(index for index, is_used in enumerate(used) if is_used)
            mlir.renew_type(self._functions[block.symbol])
            if sites(self._functions[block.symbol]):
                block.spread = self._functions[block.symbol]

    def _assemble_layer(self, program: Program, name: str) -> list[Need]:
        """Give a layer's function its ranks; returns what it takes beyond its inputs.

        `name` is of the first layer that calls the function; in the others the weights lie alike.
        """
        layer = program.layers[name]
        function = self._functions[layer.symbol]
        body = function.regions[0].blocks[0]
        arguments = list(body.arguments)
        first = len(layer.call.inputs)
        shared = _shared_inputs(self._functions[program.entry.name], program, layer)
        needs: dict[Need, ir.Value] = {}
        weights: dict[Need, ir.Value] = {}
        at_start = ir.InsertionPoint.at_block_begin(body)

        def take(need: Need) -> ir.Value:
            if need not in needs:
                needs[need] = mlir.add_argument(function, mlir.tensor(need.meta))
            return needs[need]

        def supply(need: Need) -> ir.Value:
            if need.kind != "weight":
                return take(need)
            if need not in weights:
                slot = self.slot(f"{name}.{need.name}", need.rank)
                entry = take(Need("entry", slot.entry.removeprefix(name), need.rank, self.entry_meta(slot, need)))
                weights[need] = mlir.slice_of(entry, slot.offset_bytes, need.meta, at_start)
            return weights[need]

        def send(value: ir.Value, meta: Meta, rank: int, at: ir.InsertionPoint) -> ir.Value:
            index = next((i for i in shared if arguments[i] == value), None)
            if index is None:
                return mlir.transfer(value, rank, at)
            return supply(Need("input", str(index), rank, meta))

        updated: list[ir.Value] = []
        for op, site in sites(function):
            block = site.removeprefix(f"{name}.")
            updated += expand(op, block, layer.blocks[block], self.tp, supply, send)
        for argument, weight, meta in zip(arguments[first:], layer.weights, layer.metas, strict=True):
            argument.replace_all_uses_with(supply(Need("weight", weight, 0, meta)))
        for index in reversed(range(first, len(arguments))):
            body.erase_argument(index)
        mlir.replace_return(function, updated)
        function.attributes["inlining_policy"] = ir.Attribute.parse("#util.inline.never")
        mlir.renew_type(function)
        return list(needs)

    def slot(self, name: str, rank: int) -> Slot:
        """Where a parameter lies on a rank."""
        return self.packings[rank].slots[self.tied.get(name, name)]

    def entry_meta(self, slot: Slot, need: Need) -> Meta:
        """The whole of the entry that a needed weight lies in."""
        packing = self.packings[need.rank]
        dtype = packing.types[slot.entry] or torch.uint8
        return Meta((packing.sizes[slot.entry] // dtype.itemsize,), dtype)

    def hold(self, name: str, rank: int, meta: Meta, is_cache: bool = False) -> Global:
        """The global that stands for the tensor `name` on `rank`; made when it is first asked for."""
        symbol = f"{'cache.' if is_cache else ''}{symbol_of(self.tied.get(name, name), rank)}"
        if symbol not in self.globals:
            number = sum(each.cache_number is not None for each in self.globals.values()) + 1 if is_cache else None
            self.globals[symbol] = Global(symbol, rank, meta, number)
        return self.globals[symbol]


class _RootAssembler:
    """Fills the public function of one entry point."""

    def __init__(self, owner: Assembler, program: Program, function: ir.Operation) -> None:
        self._owner = owner
        self._program = program
        self._function = function
        self._sent: list[tuple[ir.Value, int, ir.Value]] = []

    def run(self, layer_needs: dict[str, list[Need]]) -> None:
        """Give every call its operands, keep what comes back of the cache, and take the weights from globals."""
        for op, name in sites(self._function):
            if name in self._program.layers:
                layer = self._program.layers[name]
                self._call_layer(op, name, layer, layer_needs[layer.symbol])
            else:
                self._expand_block(op, name, self._program.blocks[name])
        self._load_own_weights()
        mlir.renew_type(self._function)
        if self._owner.tp > 1:
            home = ir.DictAttr.get({"iree.abi.affinity": mlir.device(0)})
            self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([home] * len(self._program.inputs))
            self._function.attributes["res_attrs"] = ir.ArrayAttr.get([home])

    def _call_layer(self, op: ir.Operation, name: str, layer: Layer, needs: list[Need]) -> None:
        at = ir.InsertionPoint(op)
        hidden, *shared = op.operands
        inputs = [hidden, *(self._send_once(value, 0, at) for value in shared)]
        extra = [self._supply(need, name, inputs, at) for need in needs]
        caches = [need for need in needs if need.kind == "cache"]
        results = [op.results[0].type, *(mlir.tensor(need.meta) for need in caches)]
        callee = ir.FlatSymbolRefAttr.get(layer.symbol)
        call = emit("util.call", at, [*inputs, *extra], results, callee=callee)
        for need, value in zip(caches, list(call.results)[1:], strict=True):
            cache = self._owner.hold(f"{name}.{need.name}", need.rank, need.meta, is_cache=True)
            stored = value if cache.stored == cache.meta else mlir.bitcast(value, cache.stored, at)
            emit("util.global.store", at, [stored], **{"global": ir.FlatSymbolRefAttr.get(cache.symbol)})
        op.results[0].replace_all_uses_with(call.results[0])
        op.erase()

    def _expand_block(self, op: ir.Operation, name: str, block: Block) -> None:
        at = ir.InsertionPoint(op)

        def send(value: ir.Value, _meta: Meta, rank: int, where: ir.InsertionPoint) -> ir.Value:
            return mlir.transfer(value, rank, where)

        sender: Sender = send
        expand(op, "", block, self._owner.tp, lambda need: self._supply(need, name, [], at), sender)

    def _supply(self, need: Need, module: str, inputs: list[ir.Value], at: ir.InsertionPoint) -> ir.Value:
        if need.kind == "input":
            return self._send_once(inputs[int(need.name)], need.rank, at)
        if need.kind == "entry":
            return self._load(f"{module}{need.name}", need.rank, need.meta, at)
        return self._load(f"{module}.{need.name}", need.rank, need.meta, at, need.kind == "cache")

    def _send_once(self, value: ir.Value, rank: int, at: ir.InsertionPoint) -> ir.Value:
        """The value on a rank. Rank 0 too: what follows from constants alone, as masks do, has no place of its own.

        Left without one, it makes IREE 3.13 doubt where a layer's ops run, and copy that layer's weights and cache.
        """
        if self._owner.tp == 1:
            return value
        for source, to, arrived in self._sent:
            if to == rank and source == value:
                return arrived
        arrived = mlir.transfer(value, rank, at)
        self._sent.append((value, rank, arrived))
        return arrived

    def _load(self, name: str, rank: int, meta: Meta, at: ir.InsertionPoint, is_cache: bool = False) -> ir.Value:
        held = self._owner.hold(name, rank, meta, is_cache)
        symbol = ir.FlatSymbolRefAttr.get(held.symbol)
        value = emit("util.global.load", at, results=[mlir.tensor(held.stored)], **{"global": symbol}).result
        return value if held.stored == meta else mlir.bitcast(value, meta, at)

    def _load_own_weights(self) -> None:
        body = self._function.regions[0].blocks[0]
        at = ir.InsertionPoint.at_block_begin(body)
        first = len(self._program.inputs)
        arguments = list(body.arguments)[first:]
        weights = zip(self._program.weights, self._program.metas, strict=True)
        values = [
            *(partial(self._load, name, 0, meta, at) for name, meta in weights),
            *(partial(mlir.constant, buffer, at) for buffer in self._program.constants.values()),
        ]
        for argument, make in zip(arguments, values, strict=True):
            if mlir.is_used(argument):
                argument.replace_all_uses_with(make())
        for index in reversed(range(first, len(body.arguments))):
            body.erase_argument(index)


def sites(function: ir.Operation) -> list[tuple[ir.Operation, str]]:
    """The calls in `function` that still stand for a stub, with the name of its module."""
    found = []
    for op in mlir.operations(function):
        if op.name == "func.call":
            symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            found.append((op, symbol.removeprefix(SITE).partition(":")[2]))
    return found


def _convert_functions(module: ir.Module) -> dict[str, ir.Operation]:
    """func.func becomes util.func, which knows about inlining; the declarations of the sites go."""
    functions = {}
    for view in list(module.body.operations):
        old = view.operation
        if old.name != "func.func":  # a kernel, which is one already
            continue
        symbol = ir.StringAttr(old.attributes["sym_name"]).value
        if not symbol.startswith(SITE):
            functions[symbol] = _as_util_function(module, old, symbol)
        old.erase()
    return functions


def _as_util_function(module: ir.Module, old: ir.Operation, symbol: str) -> ir.Operation:
    attributes = {"sym_name": ir.StringAttr.get(symbol), "function_type": old.attributes["function_type"]}
    if "." in symbol:  # a piece; entry points are public
        attributes["sym_visibility"] = ir.StringAttr.get("private")
    new = emit("util.func", ir.InsertionPoint(module.body), regions=1, **attributes)
    old.regions[0].blocks[0].append_to(new.regions[0])
    mlir.replace_return(new, [])
    return new


def _shared_inputs(root: ir.Operation, program: Program, layer: Layer) -> list[int]:
    """Inputs that are the same value in every call of the layer: the root sends those to the ranks once."""
    calls = [list(op.operands) for op, name in sites(root) if program.layers.get(name) is layer]
    return [i for i in range(1, len(calls[0])) if all(call[i] == calls[0][i] for call in calls)]
