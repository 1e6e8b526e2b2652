"""Tracing the subgraphs of an entry point with torch, and importing them into one MLIR module.

This bypasses `iree.turbine.aot` for all but its table of decompositions. aot exports whole modules, with one trace for
each layer and rank: 726 s for 126 layers on 8 ranks, where the distinct subgraphs take seconds. iree-turbine 3.9 also
calls `isinstance` methods that the bindings of iree-base-compiler 3.13 no longer have. aot can return here when a
release supports that compiler, and can import one traced function and call it many times (`aot.FxProgramsBuilder`
cannot).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from iree.compiler import ir
from iree.compiler.extras.fx_importer import FxImporter
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from workers.llm.export.entry_modules import entry_module
from workers.llm.export.entry_points import EntryPoint
from workers.llm.export.fx_graphs import trace_graph
from workers.llm.export.int4_kernel import OP as INT4_OP
from workers.llm.export.int4_kernel import declare_kernel_call
from workers.llm.export.kv_cache import CacheLayout
from workers.llm.export.mlir_ops import declare, emit
from workers.llm.export.residual_stream import ResidualStream
from workers.llm.export.subgraphs import SUBGRAPH_OP, SUM_OP, ModuleCall, SubgraphStub, TensorMeta, dtype_of, find_cache
from workers.llm.export.taps import INPUT, NO_TAPS, Taps, recording, tapped_modules
from workers.llm.sharding.local_modules import is_attention
from workers.llm.sharding.plan import Sharding
from workers.llm.sharding.shard_regions import shard_region_of
from workers.llm.sharding.split_styles import Join
from workers.llm.weights.archive_layout import LAYER

STUB_CALL = "site:"  #: prefix of the symbols that stand for a stub until the program is assembled


@dataclass
class TracedBlock:
    """One rank's part of a block: a function of inputs, offset (of an embedding), weights and cache."""

    symbol: str
    call: ModuleCall
    weights: tuple[str, ...]  #: names relative to the module
    metas: tuple[TensorMeta, ...]  #: of the weights, on one rank
    cache: tuple[TensorMeta, ...]  #: key and value, or nothing
    join: Join
    part_output: TensorMeta
    rows: int = 0  #: of an embedding's part; its offset is rank * rows
    taps: dict[str, TensorMeta] = field(default_factory=dict)  #: further results: outputs of modules, by relative name
    shares: frozenset[int] = frozenset()  #: inputs of which the layer around it has shares, where `call` has all tokens
    used_inputs: tuple[int, ...] = ()  #: set once the subgraph is lowered
    spread: ir.Operation | None = None  #: set then too: the function, where ranks sum something within it


@dataclass(frozen=True)
class TracedLayer:
    """A decoder layer around its blocks: a function of inputs and the layer's own weights."""

    symbol: str
    call: ModuleCall
    weights: tuple[str, ...]
    metas: tuple[TensorMeta, ...]
    blocks: dict[str, TracedBlock]  #: by name relative to the layer, in the order of the calls
    taps: tuple[str, ...] = ()  #: further results: outputs of the layer's parts, by relative name


@dataclass
class TracedProgram:
    """All subgraphs of one entry point."""

    entry: EntryPoint
    stream: ResidualStream
    inputs: tuple[TensorMeta, ...]
    weights: tuple[str, ...] = ()
    metas: tuple[TensorMeta, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)  #: buffers that follow from the config
    layers: dict[str, TracedLayer] = field(default_factory=dict)  #: by the modules' full names
    blocks: dict[str, TracedBlock] = field(default_factory=dict)  #: outside of the layers
    taps: tuple[str, ...] = ()  #: further results: hidden states around the layers

    def all_blocks(self) -> list[TracedBlock]:
        """Return the blocks of all layers, and those outside of them."""
        return [*(block for layer in self.layers.values() for block in layer.blocks.values()), *self.blocks.values()]


def share_functions(kinds: Sequence[Any]) -> list[int]:
    """Return for each layer, by its kind, which function of its kind it calls.

    One is enough, but on several devices iree-compile 3.13 fails ("failed to solve for timepoint coverage") where a
    function is called more often than one that is first called later: sliding, full, sliding; not: full, sliding,
    sliding. There all functions are called equally often.
    """
    calls = list(Counter(kinds).values())  # in the order of the first calls
    size = max(calls, default=1) if calls == sorted(calls) else math.gcd(*calls)
    seen: Counter[Any] = Counter()
    groups = []
    for kind in kinds:
        groups.append(seen[kind] // size)
        seen[kind] += 1
    return groups


def slot_shape(sharding: Sharding) -> tuple[int, int]:
    """Return the number of key or value heads on a rank, and the elements of each."""
    return max(sharding.kv_heads // sharding.tp, 1), sharding.head_dim


class ModuleImporter:
    """Imports traced subgraphs into `module`."""

    def __init__(self) -> None:
        self.context = ir.Context()
        self.module = ir.Module.create(ir.Location.unknown(self.context))
        self._importer = FxImporter(module=self.module)

    def add(self, symbol: str, graph: torch.fx.Graph) -> None:
        """Import a subgraph as the private function `symbol`; calls of stubs become calls of declared functions."""
        with self.context, ir.Location.unknown():
            operation = self._importer.import_stateless_graph(graph, func_name=symbol, func_visibility="private")
            _make_calls(self.module, operation, symbol.partition(".")[0])


class SubgraphTracer:
    """Traces subgraphs and gives each to `take`; the model's parameters are fake tensors of `mode`."""

    def __init__(
        self,
        model: nn.Module,
        stubs: dict[str, SubgraphStub],
        sharding: Sharding,
        layout: CacheLayout,
        mode: FakeTensorMode,
        cache_dtype: torch.dtype,
        take: Callable[[str, torch.fx.Graph], None],
        taps: Taps = NO_TAPS,
    ) -> None:
        self.model = model
        self.stubs = stubs
        self.sharding = sharding
        self.layout = layout
        self.mode = mode
        self.cache_dtype = cache_dtype
        self.taps = taps
        self._take = take
        self._traced: dict[tuple[Any, ...], Any] = {}  #: subgraphs of the entry point by `kind`
        self._stream = ResidualStream(1, sharding.tp)  #: of the entry point

    def trace(self, entry: EntryPoint) -> TracedProgram:
        """Trace all subgraphs of `entry`, each distinct one once."""
        self._traced = {}
        config: Any = self.model.config
        arguments = entry.arguments(self.layout, config.vocab_size, dtype_of(self.model))
        self._stream = ResidualStream(entry.batch * entry.tokens, self.sharding.tp)
        program = TracedProgram(entry, self._stream, tuple(arguments.values()))
        self._trace_root(program)
        if not entry.has_model:
            return program
        layers = {
            name: stub.kind
            for name, stub in self.stubs.items()
            if stub.join is None and name not in self.taps.layers  # those are inlined
        }
        groups = dict(zip(layers, share_functions(list(layers.values())), strict=True)) if self.sharding.tp > 1 else {}
        for name, stub in self.stubs.items():
            if stub.join is None:
                program.layers[name] = self._once(entry, stub, self._trace_layer, groups.get(name, 0))
            elif not LAYER.match(name):
                program.blocks[name] = self._once(entry, stub, self._trace_block)
        return program

    def _once(
        self,
        entry: EntryPoint,
        stub: SubgraphStub,
        trace: Callable[[SubgraphStub, str], Any],
        group: int = 0,
    ) -> Any:
        key = (self._kind(stub), group)
        if key not in self._traced:
            self._traced[key] = trace(stub, f"{entry.name}.{self._next_name(stub)}")
        return self._traced[key]

    def _kind(self, stub: SubgraphStub) -> tuple[Any, ...]:
        """Return the key of what shares a function; a layer whose modules are tapped has one of its own."""
        return (*stub.kind, stub.name) if stub.name in self.taps.layers else stub.kind

    def _is_tapped(self, stub: SubgraphStub) -> bool:
        layer = LAYER.match(f"{stub.name}.")
        return layer is not None and layer["layer"] in self.taps.layers

    def _next_name(self, stub: SubgraphStub) -> str:
        if stub.join is None:
            return f"layer{sum(isinstance(subgraph, TracedLayer) for subgraph in self._traced.values())}"
        return stub.name.rpartition(".")[2]

    def _trace_root(self, program: TracedProgram) -> None:
        root, count = entry_module(self.model, program.entry, self.layout), len(program.inputs)
        if program.entry.has_model:
            parameters = {name: TensorMeta.of(p) for name, p in self.model.named_parameters()}
            program.weights, program.metas = tuple(parameters), tuple(parameters.values())
            program.constants = dict(self.model.named_buffers())
        names = [f"model.{name}" for name in (*program.weights, *program.constants)]
        metas = [*program.metas, *map(TensorMeta.of, program.constants.values())]

        layers = {name: stub for name, stub in self.stubs.items() if stub.join is None and self.taps.has_states}
        first = dict(zip((INPUT,), layers.values(), strict=False))

        def function(tensors: list[torch.Tensor]) -> Any:
            with recording(layers, first) as states:
                weights = dict(zip(names, tensors[count:], strict=True))
                results = functional_call(root, weights, tuple(tensors[:count]))
            program.taps = tuple(states)
            return (*results, *states.values())

        self._trace(program.entry.name, function, [*program.inputs, *metas])

    def _trace_layer(self, stub: SubgraphStub, symbol: str) -> TracedLayer:
        """Trace a layer for what a rank has of the residual stream, and its blocks for all tokens."""
        assert stub.call is not None
        call, count = stub.call, len(stub.call.inputs)
        parameters = {name: TensorMeta.of(p) for name, p in stub.original.named_parameters()}
        parts = tapped_modules(stub.original, _is_stub) if self._is_tapped(stub) else {}
        inner = {name: part for name, part in stub.original.named_modules() if isinstance(part, SubgraphStub)}
        taps: list[str] = []

        def function(tensors: list[torch.Tensor]) -> Any:
            args, kwargs = call.arguments(tensors[:count])
            weights = dict(zip(parameters, tensors[count:], strict=True))
            with recording(parts) as outputs:
                result = functional_call(stub.original, weights, args, kwargs)
            taps[:] = outputs
            return (result, *outputs.values())

        with self.mode:
            function([_empty(meta) for meta in (*call.inputs, *parameters.values())])
        calls = {name: part.call for name, part in inner.items()}
        hidden, *shared = call.inputs
        self._trace(symbol, function, [self._stream.local_meta(hidden), *shared, *parameters.values()])
        blocks = {name: self._trace_block(part, f"{symbol}.{name}", calls[name]) for name, part in inner.items()}
        return TracedLayer(symbol, call, tuple(parameters), tuple(parameters.values()), blocks, tuple(taps))

    def _trace_block(self, stub: SubgraphStub, symbol: str, whole: ModuleCall | None = None) -> TracedBlock:
        """Trace a rank's part of a block; `whole` is its call with all tokens, where the recorded one has a share."""
        assert stub.call is not None and stub.join is not None
        call = whole or stub.call
        shares = frozenset(i for i, local in enumerate(stub.call.inputs) if local != call.inputs[i])
        names = [name for name, _ in stub.original.named_parameters()]
        metas = self._local_metas(stub)
        kv_meta = TensorMeta((self.layout.slots, *slot_shape(self.sharding)), self.cache_dtype)
        cache = (kv_meta, kv_meta) if is_attention(stub.original) else ()
        rows = metas[0].shape[0] if isinstance(stub.original, nn.Embedding) else 0
        parts = tapped_modules(stub.original, _is_stub) if self._is_tapped(stub) else {}
        taps: dict[str, TensorMeta] = {}
        if isinstance(stub.original, nn.Embedding):
            function = _vocabulary_part(stub.original)
        else:
            function = _with_taps(_block_function(stub.original, call, names, bool(cache)), parts, taps)
        offset = [TensorMeta((), torch.int64)] if rows else []
        self._trace(symbol, function, [*call.inputs, *offset, *metas, *cache])
        width = call.output.shape[-1] // (self.sharding.tp if stub.join is Join.CONCAT else 1)
        part = TensorMeta((*call.output.shape[:-1], width), call.output.dtype)
        return TracedBlock(symbol, call, tuple(names), metas, cache, stub.join, part, rows, taps, shares)

    def _local_metas(self, stub: SubgraphStub) -> tuple[TensorMeta, ...]:
        metas = []
        for name, parameter in stub.original.named_parameters():
            region = shard_region_of(self.sharding, f"{stub.name}.{name}", tuple(parameter.shape), 0)
            assert region is not None
            metas.append(TensorMeta(region.shape, parameter.dtype))
        return tuple(metas)

    def _trace(self, symbol: str, function: Callable[[list[torch.Tensor]], Any], metas: Sequence[TensorMeta]) -> None:
        with self.mode:
            graph = trace_graph(function, [_empty(meta) for meta in metas])
        self._take(symbol, graph)


def _empty(meta: TensorMeta) -> torch.Tensor:
    return torch.empty(meta.shape, dtype=meta.dtype)


def _block_function(
    original: nn.Module, call: ModuleCall, names: list[str], has_cache: bool
) -> Callable[[list[torch.Tensor]], Any]:
    inputs = len(call.inputs)

    def function(tensors: list[torch.Tensor]) -> Any:
        args, kwargs = call.arguments(tensors[:inputs])
        weights = dict(zip(names, tensors[inputs : inputs + len(names)], strict=True))
        cache = find_cache(args, kwargs)
        if has_cache:
            assert cache is not None
            cache.key, cache.value = tensors[-2:]
            cache.scales = (weights["k_scale"], weights["v_scale"]) if "k_scale" in weights else None
        output = functional_call(original, weights, args, kwargs)
        output = output[0] if isinstance(output, tuple) else output
        return (output, cache.key, cache.value) if has_cache and cache is not None else (output,)

    return function


def _is_stub(module: nn.Module) -> bool:
    return isinstance(module, SubgraphStub)


def _with_taps(
    function: Callable[[list[torch.Tensor]], Any], parts: dict[str, nn.Module], taps: dict[str, TensorMeta]
) -> Callable[[list[torch.Tensor]], Any]:
    """Return a function that returns the outputs of some modules, too; `taps` gets their names when it is traced."""

    def tapped(tensors: list[torch.Tensor]) -> Any:
        with recording(parts) as outputs:
            results = function(tensors)
        taps.clear()
        taps.update({name: TensorMeta.of(output) for name, output in outputs.items()})
        return (*results, *outputs.values())

    return tapped


def _vocabulary_part(original: nn.Embedding) -> Callable[[list[torch.Tensor]], Any]:
    """Return a rank's part of an embedding: the rows of its own tokens, zeros for all others."""
    scale = float(torch.tensor(getattr(original, "scalar_embed_scale", 1.0), dtype=original.weight.dtype))

    def function(tensors: list[torch.Tensor]) -> Any:
        tokens, offset, weight = tensors
        local = tokens - offset
        is_local = torch.logical_and(local >= 0, local < weight.shape[0])
        rows = nn.functional.embedding(torch.where(is_local, local, 0), weight)
        rows = rows if scale == 1.0 else rows * scale
        return (rows * is_local[..., None].to(weight.dtype),)

    return function


def _make_calls(module: ir.Module, function: ir.Operation, entry: str) -> None:
    """Turn each of haloctl's ops into a call of a declared function, which every later pass supports."""
    for number, view in enumerate(list(function.regions[0].blocks[0].operations)):
        op = view.operation
        kind = ir.StringAttr(op.attributes["name"]).value if op.name == "torch.operator" else None
        if kind == INT4_OP:
            declare_kernel_call(module, op)
        elif kind == SUBGRAPH_OP:
            inputs, name = op.operands[0].owner, op.operands[1].owner
            symbol = f"{STUB_CALL}{entry}:{ir.StringAttr(name.attributes['value']).value}"
            _call(module, op, symbol, list(inputs.operands))
            inputs.erase()
        elif kind == SUM_OP:
            symbol = ir.StringAttr(function.attributes["sym_name"]).value
            _call(module, op, f"{STUB_CALL}{symbol}:{SUM_OP}{number}", list(op.operands))


def _call(module: ir.Module, op: ir.Operation, symbol: str, operands: list[ir.Value]) -> None:
    result = op.results[0]
    declare(module, symbol, ir.FunctionType.get([value.type for value in operands], [result.type]))
    callee = ir.FlatSymbolRefAttr.get(symbol)
    call = emit("func.call", ir.InsertionPoint(op), operands, [result.type], callee=callee)
    result.replace_all_uses_with(call.results[0])
    op.erase()
