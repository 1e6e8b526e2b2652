"""The graph of a function in operations that torch-mlir lowers well."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from iree.turbine.dynamo.decompositions import DEFAULT_DECOMPOSITION_TABLE
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """One matmul over all tokens. As aten.linear it becomes a batched one that copies the weight, transposed."""
    product = torch.mm(x.reshape(-1, x.shape[-1]), weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> list[torch.Tensor]:
    """Slices, which lower where aten.chunk does not."""
    size = -(-x.shape[dim] // chunks)
    return [torch.ops.aten.slice.Tensor(x, dim, first, first + size) for first in range(0, x.shape[dim], size)]


def _gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """As torch computes it. torch-mlir's tanh form (IREE 3.13) is off by 1e-5."""
    if approximate == "none":
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


DECOMPOSITIONS = {
    **DEFAULT_DECOMPOSITION_TABLE,
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten.chunk.default: _chunk,
    torch.ops.aten.gelu.default: _gelu,
}


def graph_of(function: Callable[[list[torch.Tensor]], Any], tensors: Sequence[torch.Tensor]) -> torch.fx.Graph:
    """The graph of a function of tensors, as `torch.export` would have it, in a fifth of the time."""
    trace = make_fx(lambda *flat: function(list(flat)), DECOMPOSITIONS, pre_dispatch=True)
    with torch.no_grad():
        graph = trace(*tensors).graph
    for node in list(graph.nodes):
        if node.target is torch._C._set_grad_enabled:
            graph.erase_node(node)
        elif isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            _return_instead(node)
    graph.eliminate_dead_code()
    return graph


def _return_instead(node: torch.fx.Node) -> None:
    """Have an operation that changes its first argument (`x /= y`) return the new value to all that read it later."""
    assert isinstance(node.target, OpOverload)
    name, overload = node.target._schema.name.removeprefix("aten::").removesuffix("_"), node.target._overloadname
    changed = node.args[0]
    assert isinstance(changed, torch.fx.Node)
    relatives = [changed, *changed.all_input_nodes, *changed.users]
    if any(_returns_a_view(each) for each in relatives if each is not node):
        raise NotImplementedError(f"{node.format_node()} changes a tensor that another one is a view of")
    node.target = getattr(getattr(torch.ops.aten, name), overload)
    for reader in list(_after(node)):
        reader.replace_input_with(changed, node)


def _after(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    later = node.next
    while later.op != "root":
        yield later
        later = later.next


def _returns_a_view(node: torch.fx.Node) -> bool:
    target = node.target
    is_op = isinstance(target, OpOverload) and not target._schema.is_mutable
    return is_op and any(each.alias_info is not None for each in target._schema.returns)  # type: ignore[union-attr]
