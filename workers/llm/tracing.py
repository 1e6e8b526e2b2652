"""Tracing the pieces of an entry point with torch and bringing them into one MLIR module.

This bypasses `iree.turbine.aot` for all but its table of decompositions. aot exports whole modules, one trace for each
layer and rank: 726 s for 126 layers on 8 ranks, where the pieces alone take seconds. iree-turbine 3.9 also calls
`isinstance` methods that the bindings of iree-base-compiler 3.13 no longer have. aot can come back here when a release
supports that compiler and can import one traced function and call it many times (`aot.FxProgramsBuilder` cannot).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from iree.compiler import ir
from iree.compiler.extras.fx_importer import FxImporter
from iree.turbine.dynamo.decompositions import DEFAULT_DECOMPOSITION_TABLE
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from workers.llm.entry_points import EntryPoint, Root
from workers.llm.mlir import emit
from workers.llm.pieces import PIECE_OP, Call, Meta, Stub, dtype_of, find_cache, is_attention
from workers.llm.sharding import Join, Sharding, region_of

SITE = "site:"  #: begins the symbols that stand for a stub until the program is put together


@dataclass
class Block:
    """One rank's part of a block. Function of inputs, offset (of an embedding), weights, cache."""

    symbol: str
    call: Call
    weights: tuple[str, ...]  #: names relative to the module
    metas: tuple[Meta, ...]  #: of the weights, on one rank
    cache: tuple[Meta, ...]  #: key and value, or nothing
    join: Join
    part_output: Meta
    rows: int = 0  #: of an embedding's part; its offset is rank * rows
    used_inputs: tuple[int, ...] = ()  #: known once the piece is lowered


@dataclass(frozen=True)
class Layer:
    """A decoder layer around its blocks. Function of inputs and its own weights."""

    symbol: str
    call: Call
    weights: tuple[str, ...]
    metas: tuple[Meta, ...]
    blocks: dict[str, Block]  #: by name relative to the layer, in the order of the calls


@dataclass
class Program:
    """All pieces of one entry point."""

    entry: EntryPoint
    inputs: tuple[Meta, ...]
    weights: tuple[str, ...] = ()
    metas: tuple[Meta, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)  #: buffers that follow from the config
    layers: dict[str, Layer] = field(default_factory=dict)  #: by the modules' full names
    blocks: dict[str, Block] = field(default_factory=dict)  #: outside of the layers

    def all_blocks(self) -> list[Block]:
        """The blocks of every kind of layer, and those outside of them."""
        return [*(block for layer in self.layers.values() for block in layer.blocks.values()), *self.blocks.values()]


class Tracer:
    """Traces pieces into `module`; the model's parameters are fake tensors of `mode`."""

    def __init__(
        self, model: nn.Module, stubs: dict[str, Stub], sharding: Sharding, slots: int, mode: FakeTensorMode
    ) -> None:
        self.model = model
        self.config: Any = model.config
        self.stubs = stubs
        self.sharding = sharding
        self.slots = slots  #: rows of a cache tensor
        self.mode = mode
        self.context = ir.Context()
        self.module = ir.Module.create(ir.Location.unknown(self.context))
        self._importer = FxImporter(module=self.module)
        self._known: dict[tuple[Any, ...], Any] = {}

    def trace(self, entry: EntryPoint, capacity: int) -> Program:
        """Trace all pieces of `entry`, each distinct one once."""
        self._known = {}
        inputs = (Meta((entry.batch, entry.tokens), torch.int64), Meta((entry.batch,), torch.int64))
        program = Program(entry, inputs)
        self._trace_root(program, capacity)
        for name, stub in self.stubs.items():
            if stub.join is None:
                program.layers[name] = self._once(entry, stub, self._trace_layer)
            elif ".layers." not in name:
                program.blocks[name] = self._once(entry, stub, self._trace_block)
        return program

    def _once(self, entry: EntryPoint, stub: Stub, trace: Callable[[Stub, str], Any]) -> Any:
        if stub.kind not in self._known:
            self._known[stub.kind] = trace(stub, f"{entry.name}.{self._next_name(stub)}")
        return self._known[stub.kind]

    def _next_name(self, stub: Stub) -> str:
        if stub.join is None:
            return f"layer{sum(isinstance(piece, Layer) for piece in self._known.values())}"
        return stub.name.rpartition(".")[2]

    def _trace_root(self, program: Program, capacity: int) -> None:
        root = Root(self.model, program.entry, capacity)
        parameters = {name: Meta.of(p) for name, p in self.model.named_parameters()}
        program.weights, program.metas = tuple(parameters), tuple(parameters.values())
        program.constants = dict(self.model.named_buffers())
        names = [f"model.{name}" for name in (*program.weights, *program.constants)]
        metas = [*program.metas, *map(Meta.of, program.constants.values())]

        def function(tensors: list[torch.Tensor]) -> Any:
            return (functional_call(root, dict(zip(names, tensors[2:], strict=True)), tuple(tensors[:2])),)

        self._import(program.entry.name, function, [*program.inputs, *metas], program.entry)

    def _trace_layer(self, stub: Stub, symbol: str) -> Layer:
        assert stub.call is not None
        entry = symbol.partition(".")[0]
        call, count = stub.call, len(stub.call.inputs)
        parameters = {name: Meta.of(p) for name, p in stub.original.named_parameters()}

        def function(tensors: list[torch.Tensor]) -> Any:
            args, kwargs = call.arguments(tensors[:count])
            weights = dict(zip(parameters, tensors[count:], strict=True))
            return (functional_call(stub.original, weights, args, kwargs),)

        self._import(symbol, function, [*call.inputs, *parameters.values()], entry)
        inner = {name: part for name, part in stub.original.named_modules() if isinstance(part, Stub)}
        blocks = {name: self._trace_block(part, f"{symbol}.{name}") for name, part in inner.items()}
        return Layer(symbol, call, tuple(parameters), tuple(parameters.values()), blocks)

    def _trace_block(self, stub: Stub, symbol: str) -> Block:
        assert stub.call is not None and stub.join is not None
        call = stub.call
        names = [name for name, _ in stub.original.named_parameters()]
        metas = self._local_metas(stub)
        cache = self._cache_metas() if is_attention(stub.original) else ()
        rows = metas[0].shape[0] if isinstance(stub.original, nn.Embedding) else 0
        function = _vocabulary_part if rows else _block_function(stub.original, call, names, bool(cache))
        offset = [Meta((), torch.int64)] if rows else []
        self._import(symbol, function, [*call.inputs, *offset, *metas, *cache], symbol.partition(".")[0])
        width = call.output.shape[-1] // (self.sharding.tp if stub.join is Join.CONCAT else 1)
        part = Meta((*call.output.shape[:-1], width), call.output.dtype)
        return Block(symbol, call, tuple(names), metas, cache, stub.join, part, rows)

    def _local_metas(self, stub: Stub) -> tuple[Meta, ...]:
        kv_heads = self.config.num_key_value_heads
        metas = []
        for name, parameter in stub.original.named_parameters():
            region = region_of(self.sharding, f"{stub.name}.{name}", tuple(parameter.shape), 0, kv_heads)
            assert region is not None
            metas.append(Meta(region.shape, parameter.dtype))
        return tuple(metas)

    def _cache_metas(self) -> tuple[Meta, Meta]:
        config = self.config
        heads = max(config.num_key_value_heads // self.sharding.tp, 1)
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        meta = Meta((self.slots, heads, dim), dtype_of(self.model))
        return meta, meta

    def _import(
        self, symbol: str, function: Callable[[list[torch.Tensor]], Any], metas: Sequence[Meta], entry: Any
    ) -> None:
        with self.mode:
            graph = _trace(function, [torch.empty(meta.shape, dtype=meta.dtype) for meta in metas])
        with self.context, ir.Location.unknown():
            operation = self._importer.import_stateless_graph(graph, func_name=symbol, func_visibility="private")
            _make_calls(self.module, operation, getattr(entry, "name", entry))


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """One matmul over all tokens. As aten.linear it becomes a batched one that copies the weight, transposed."""
    product = torch.mm(x.reshape(-1, x.shape[-1]), weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


DECOMPOSITIONS = {**DEFAULT_DECOMPOSITION_TABLE, torch.ops.aten.linear.default: _linear}


def _trace(function: Callable[[list[torch.Tensor]], Any], tensors: list[torch.Tensor]) -> torch.fx.Graph:
    """The graph of a function without side effects, as `torch.export` would have it, in a fifth of the time."""
    trace = make_fx(lambda *flat: function(list(flat)), DECOMPOSITIONS, pre_dispatch=True)
    with torch.no_grad():
        graph = trace(*tensors).graph
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _block_function(
    original: nn.Module, call: Call, names: list[str], has_cache: bool
) -> Callable[[list[torch.Tensor]], Any]:
    inputs = len(call.inputs)

    def function(tensors: list[torch.Tensor]) -> Any:
        args, kwargs = call.arguments(tensors[:inputs])
        weights = dict(zip(names, tensors[inputs : inputs + len(names)], strict=True))
        cache = find_cache(args, kwargs)
        if has_cache:
            assert cache is not None
            cache.key, cache.value = tensors[-2:]
        output = functional_call(original, weights, args, kwargs)
        output = output[0] if isinstance(output, tuple) else output
        return (output, cache.key, cache.value) if has_cache and cache is not None else (output,)

    return function


def _vocabulary_part(tensors: list[torch.Tensor]) -> Any:
    """A rank's part of an embedding: rows of the tokens that are its own, zeros for the others."""
    tokens, offset, weight = tensors
    local = tokens - offset
    is_mine = torch.logical_and(local >= 0, local < weight.shape[0])
    rows = nn.functional.embedding(torch.where(is_mine, local, 0), weight)
    return (rows * is_mine[..., None].to(weight.dtype),)


def _make_calls(module: ir.Module, function: ir.Operation, entry: str) -> None:
    """Turn each `haloctl::piece` into a call of a declared function, which every later pass understands."""
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op.name != "torch.operator" or ir.StringAttr(op.attributes["name"]).value != PIECE_OP:
            continue
        inputs, name, result = op.operands[0].owner, op.operands[1].owner, op.results[0]
        operands = list(inputs.operands)
        symbol = f"{SITE}{entry}:{ir.StringAttr(name.attributes['value']).value}"
        signature = ir.FunctionType.get([value.type for value in operands], [result.type])
        _declare(module, symbol, signature)
        callee = ir.FlatSymbolRefAttr.get(symbol)
        call = emit("func.call", ir.InsertionPoint(op), operands, [result.type], callee=callee)
        result.replace_all_uses_with(call.results[0])
        op.erase()
        inputs.erase()


def _declare(module: ir.Module, symbol: str, signature: ir.FunctionType) -> None:
    emit(
        "func.func",
        ir.InsertionPoint.at_block_begin(module.body),
        regions=1,
        sym_name=ir.StringAttr.get(symbol),
        function_type=ir.TypeAttr.get(signature),
        sym_visibility=ir.StringAttr.get("private"),
    )
