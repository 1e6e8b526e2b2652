"""Tracing a function into an FX graph of operations that torch-mlir lowers well."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from iree.turbine.dynamo.decompositions import DEFAULT_DECOMPOSITION_TABLE
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """One matmul over all tokens; aten.linear lowers to a batched one that copies the transposed weight."""
    product = torch.mm(x.reshape(-1, x.shape[-1]), weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> list[torch.Tensor]:
    """Slices, because aten.chunk does not lower."""
    size = -(-x.shape[dim] // chunks)
    return [torch.ops.aten.slice.Tensor(x, dim, first, first + size) for first in range(0, x.shape[dim], size)]


def _gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU as torch computes it; torch-mlir's tanh form (IREE 3.13) is off by 1e-5."""
    if approximate == "none":
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


DECOMPOSITIONS = {
    **DEFAULT_DECOMPOSITION_TABLE,
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten.chunk.default: _chunk,
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.aten.__and__.Tensor: torch.bitwise_and,
    torch.ops.aten.__or__.Tensor: torch.bitwise_or,
}


#: what masks are combined with, and the scalar boolean that they begin with: its literal does not lower (IREE 3.13)
_NEUTRAL = {
    torch.ops.aten.bitwise_and.Tensor: torch.ops.aten.new_ones.default,
    torch.ops.aten.bitwise_or.Tensor: torch.ops.aten.new_zeros.default,
}


def trace_graph(function: Callable[[list[torch.Tensor]], Any], tensors: Sequence[torch.Tensor]) -> torch.fx.Graph:
    """Return the graph that `torch.export` would return, in a fifth of the time."""
    trace = make_fx(lambda *flat: function(list(flat)), DECOMPOSITIONS, pre_dispatch=True)
    with torch.no_grad():
        graph = trace(*tensors).graph
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
        elif isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            _make_functional(node)
        elif node.target in _NEUTRAL:
            _drop_neutral_operand(node)
    graph.eliminate_dead_code()
    return graph


def _drop_neutral_operand(node: torch.fx.Node) -> None:
    """Replace `mask & true` or `mask | false` by the mask."""
    first, second = node.args
    for neutral, mask in ((first, second), (second, first)):
        assert isinstance(neutral, torch.fx.Node) and isinstance(mask, torch.fx.Node)
        if neutral.target is _NEUTRAL[node.target] and neutral.meta["val"].shape == ():  # type: ignore[index]
            node.replace_all_uses_with(mask)
            return


def _make_functional(node: torch.fx.Node) -> None:
    """Replace an in-place operation (`x /= y`) with its functional form, whose result all later readers use.

    Raises NotImplementedError when a view shares the changed tensor's memory.
    """
    assert isinstance(node.target, OpOverload)
    name, overload = node.target._schema.name.removeprefix("aten::").removesuffix("_"), node.target._overloadname
    changed = node.args[0]
    assert isinstance(changed, torch.fx.Node)
    relatives = [changed, *changed.all_input_nodes, *changed.users]
    if any(_returns_a_view(other) for other in relatives if other is not node):
        raise NotImplementedError(f"{node.format_node()} changes a tensor that another one is a view of")
    node.target = getattr(getattr(torch.ops.aten, name), overload)
    reader = node.next
    while reader.op != "root":
        reader.replace_input_with(changed, node)
        reader = reader.next


def _returns_a_view(node: torch.fx.Node) -> bool:
    target = node.target
    is_op = isinstance(target, OpOverload) and not target._schema.is_mutable
    return is_op and any(value.alias_info is not None for value in target._schema.returns)  # type: ignore[union-attr]
