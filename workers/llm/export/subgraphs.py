"""Cutting a model into subgraphs that are traced once each: the root, the decoder layers, the blocks that ranks share.

A stub replaces every decoder layer and every block. While the code around it is traced, the stub emits the custom op
`haloctl::subgraph` with the name of its module and records the call. The original module is traced later, on its own,
as a function of its inputs, weights and cache.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from workers.llm.export.kv_cache import SlotCache
from workers.llm.models.experts import is_experts, spread_routing_weights
from workers.llm.sharding.local_modules import is_attention, localize
from workers.llm.sharding.plan import Sharding
from workers.llm.sharding.split_styles import Join
from workers.llm.weights.archive_layout import LAYER

SUBGRAPH_OP = "torch.haloctl.subgraph"  #: its name after the import, as a `torch.operator`
SUM_OP = "torch.haloctl.sum_over_ranks"  #: within a block: the sum of a tensor over all ranks

_library = torch.library.Library("haloctl", "DEF")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "subgraph(Tensor[] inputs, str name, int[] shape, ScalarType dtype) -> Tensor"
)
_library.define("sum_over_ranks(Tensor part) -> Tensor")  # type: ignore[no-untyped-call]


@torch.library.register_fake("haloctl::sum_over_ranks", lib=_library)  # type: ignore[untyped-decorator]
def _fake_sum(part: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(part)


@torch.library.register_fake("haloctl::subgraph", lib=_library)  # type: ignore[untyped-decorator]
def _fake_subgraph(inputs: list[torch.Tensor], name: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return inputs[0].new_empty(shape, dtype=dtype)


@dataclass(frozen=True)
class TensorMeta:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> "TensorMeta":
        """Return the shape and dtype of `tensor`."""
        return TensorMeta(tuple(tensor.shape), tensor.dtype)


TENSOR = object()  #: marks the place of a tensor among the leaves of a call


@dataclass(frozen=True)
class ModuleCall:
    """A recorded call of a module: the tensors in order, and everything else."""

    inputs: tuple[TensorMeta, ...]
    leaves: tuple[Any, ...]  #: flattened arguments, TENSOR in the place of each tensor
    spec: pytree.TreeSpec
    output: TensorMeta

    def arguments(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the args and kwargs of the same call with other tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is TENSOR else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs


class SubgraphStub(nn.Module):
    """Takes the place of `original`, hides its parameters, and records its latest call."""

    def __init__(self, original: nn.Module, name: str, width: int, dtype: torch.dtype, join: Join | None) -> None:
        super().__init__()
        object.__setattr__(self, "original", original)
        self.original: nn.Module
        self.name = name  #: the module's full name in the model
        self.width = width  #: last dimension of the output
        self.dtype = dtype
        self.join = join  #: None for a decoder layer, which is not split
        self.kind = kind_of(original)
        self.call: ModuleCall | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Emit the op, with an output shaped like the original's."""
        if is_experts(self.original):
            args = spread_routing_weights(self.original, *args)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        base = args[0] if args else kwargs["hidden_states"]
        output = TensorMeta((*(base.shape[:-1] if base.is_floating_point() else base.shape), self.width), self.dtype)
        marked_leaves = tuple(TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        self.call = ModuleCall(tuple(map(TensorMeta.of, tensors)), marked_leaves, spec, output)
        result = torch.ops.haloctl.subgraph(tensors, self.name, output.shape, self.dtype)
        return (result, None) if is_attention(self.original) else result


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of the model's weights and activations."""
    dtype = model.dtype
    assert isinstance(dtype, torch.dtype)
    return dtype


def kind_of(module: nn.Module) -> tuple[Any, ...]:
    """Return a key that two modules share exactly when they are the same function of their weights."""
    parts: list[Any] = []
    for path, part in module.named_modules():
        real = part.original if isinstance(part, SubgraphStub) else part
        parts.append((path, type(real).__qualname__, _scalar_attributes(real)))
        if isinstance(part, SubgraphStub):
            parts.append((part.join, part.kind))
    return (*parts, *((name, TensorMeta.of(p)) for name, p in module.named_parameters()))


def _scalar_attributes(module: nn.Module) -> tuple[tuple[str, str], ...]:
    scalars = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str | bool)}
    return tuple(sorted((key, repr(value)) for key, value in scalars.items() if key != "layer_idx"))


def cut_into_subgraphs(model: nn.Module, sharding: Sharding) -> dict[str, SubgraphStub]:
    """Replace blocks and the layers around them with stubs; return these by the modules' full names."""
    config: Any = model.config
    dtype = dtype_of(model)
    stubs = {}
    for name, join in sharding.blocks.items():
        localize(model, name, sharding)
        width = config.vocab_size if join is Join.CONCAT else config.hidden_size
        stubs[name] = _replace(model, name, width, dtype, join)
    for name in dict.fromkeys(match["layer"] for block in sharding.blocks if (match := LAYER.match(block))):
        stubs[name] = _replace(model, name, config.hidden_size, dtype, None)
    return stubs


def _replace(model: nn.Module, name: str, width: int, dtype: torch.dtype, join: Join | None) -> SubgraphStub:
    stub = SubgraphStub(model.get_submodule(name), name, width, dtype, join)
    model.set_submodule(name, stub)
    return stub


def find_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> SlotCache | None:
    """Return the cache among a call's arguments, if there is one."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, SlotCache)), None)
