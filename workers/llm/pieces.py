"""Cutting a model into pieces, each to be traced once: the root, a decoder layer, the blocks that ranks share.

A stub takes the place of every layer and every block. While something around it is traced the stub emits the custom
op `haloctl::piece`, which names the module to call, and remembers how it was called; the original behind it is traced
later, alone, as a function of its inputs, weights and cache.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from workers.llm.experts import is_experts, shares
from workers.llm.kv_cache import SlotCache
from workers.llm.local_modules import is_attention, localize
from workers.llm.packing import LAYER
from workers.llm.sharding import Sharding
from workers.llm.split_styles import Join

PIECE_OP = "torch.haloctl.piece"  #: what the importer makes of it: `torch.operator "torch.haloctl.piece"`
SUM_OP = "torch.haloctl.sum_over_ranks"  #: within a block: what all ranks have of a tensor, added up

_library = torch.library.Library("haloctl", "DEF")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "piece(Tensor[] inputs, str name, int[] shape, ScalarType dtype) -> Tensor"
)
_library.define("sum_over_ranks(Tensor part) -> Tensor")  # type: ignore[no-untyped-call]


@torch.library.register_fake("haloctl::sum_over_ranks", lib=_library)  # type: ignore[untyped-decorator]
def _fake_sum(part: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(part)


@torch.library.register_fake("haloctl::piece", lib=_library)  # type: ignore[untyped-decorator]
def _fake_piece(inputs: list[torch.Tensor], name: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return inputs[0].new_empty(shape, dtype=dtype)


@dataclass(frozen=True)
class Meta:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> "Meta":
        """The meta of `tensor`."""
        return Meta(tuple(tensor.shape), tensor.dtype)


#: where a tensor goes among the leaves of a call
TENSOR = object()


@dataclass(frozen=True)
class Call:
    """How a module was called: its tensors in order, and everything else."""

    inputs: tuple[Meta, ...]
    leaves: tuple[Any, ...]  #: flattened arguments; TENSOR stands for a tensor
    spec: pytree.TreeSpec
    output: Meta

    def arguments(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call's args and kwargs, with other tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is TENSOR else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs


class Stub(nn.Module):
    """Stands for `original`, whose parameters it hides, and remembers its latest call."""

    def __init__(self, original: nn.Module, name: str, width: int, dtype: torch.dtype, join: Join | None) -> None:
        super().__init__()
        object.__setattr__(self, "original", original)
        self.original: nn.Module
        self.name = name  #: the module's full name in the model
        self.width = width  #: of the last dimension of what it returns
        self.dtype = dtype
        self.join = join  #: None for a decoder layer, which is not split
        self.kind = kind_of(original)
        self.call: Call | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Emit the op; shaped like what the original returns."""
        if is_experts(self.original):
            args = shares(self.original, *args)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        base = args[0] if args else kwargs["hidden_states"]
        output = Meta((*(base.shape[:-1] if base.is_floating_point() else base.shape), self.width), self.dtype)
        marked = tuple(TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        self.call = Call(tuple(map(Meta.of, tensors)), marked, spec, output)
        result = torch.ops.haloctl.piece(tensors, self.name, output.shape, self.dtype)
        return (result, None) if is_attention(self.original) else result


def dtype_of(model: nn.Module) -> torch.dtype:
    """The type of the model's weights and activations."""
    dtype = model.dtype
    assert isinstance(dtype, torch.dtype)
    return dtype


def kind_of(module: nn.Module) -> tuple[Any, ...]:
    """What two modules share exactly when they are the same function of their weights."""
    parts: list[Any] = []
    for path, part in module.named_modules():
        real = part.original if isinstance(part, Stub) else part
        parts.append((path, type(real).__qualname__, _scalars(real)))
        if isinstance(part, Stub):
            parts.append((part.join, part.kind))
    return (*parts, *((name, Meta.of(p)) for name, p in module.named_parameters()))


def _scalars(module: nn.Module) -> tuple[Any, ...]:
    plain = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str | bool)}
    return tuple(sorted((key, repr(value)) for key, value in plain.items() if key != "layer_idx"))


def cut(model: nn.Module, sharding: Sharding) -> dict[str, Stub]:
    """Put stubs in the place of blocks and of the layers around them; returns them by the modules' full names."""
    config: Any = model.config
    dtype = dtype_of(model)
    stubs = {}
    for name, join in sharding.blocks.items():
        localize(model, name, sharding)
        width = config.vocab_size if join is Join.CONCAT else config.hidden_size
        stubs[name] = _replace(model, name, width, dtype, join)
    for name in dict.fromkeys(found["layer"] for block in sharding.blocks if (found := LAYER.match(block))):
        stubs[name] = _replace(model, name, config.hidden_size, dtype, None)
    return stubs


def _replace(model: nn.Module, name: str, width: int, dtype: torch.dtype, join: Join | None) -> Stub:
    stub = Stub(model.get_submodule(name), name, width, dtype, join)
    model.set_submodule(name, stub)
    return stub


def find_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> SlotCache | None:
    """The cache among a call's arguments."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, SlotCache)), None)
