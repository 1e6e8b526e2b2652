"""Taps: values within a program that it returns beside its logits, for finding out where numbers part.

Hidden states are tapped around every decoder layer, and the outputs of modules within chosen ones. Where ranks share a
block, each rank's part is an output of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

INPUT = "input"  #: the name of what the first decoder layer is given


@dataclass(frozen=True)
class Taps:
    """The values that a program returns beside its logits."""

    has_states: bool = False  #: the input of the first decoder layer, and the output of each
    layers: frozenset[str] = frozenset()  #: full names of the layers in which the output of each module is tapped
    #: Layers are inlined, which takes longer to compile. On several devices IREE 3.13 can't compile some programs with
    #: taps otherwise: "failed to solve for timepoint coverage".
    is_inlined: bool = False


NO_TAPS = Taps()


@dataclass(frozen=True)
class TapOutput:
    """A tapped value: the output of a module, whole or as one rank has it."""

    module: str  #: full name; INPUT for the input of the first layer
    rank: int | None = None  #: None: joined, or outside of what ranks share

    @property
    def name(self) -> str:
        """Its name among the results of an entry point."""
        return f"{self.module}@{'all' if self.rank is None else self.rank}"


@contextmanager
def recording(
    outputs: Mapping[str, nn.Module], inputs: Mapping[str, nn.Module] | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """Record what modules return and what others are given first, by these names, in the order of the calls."""
    values: dict[str, torch.Tensor] = {}

    def keep_output(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            values[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def keep_input(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            values[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    hooks = [module.register_forward_hook(keep_output(name)) for name, module in outputs.items()]
    hooks += [
        module.register_forward_pre_hook(keep_input(name), with_kwargs=True) for name, module in (inputs or {}).items()
    ]
    try:
        yield values
    finally:
        for hook in hooks:
            hook.remove()


def tapped_modules(module: nn.Module, is_whole: Callable[[nn.Module], bool]) -> dict[str, nn.Module]:
    """Return the parts of a module that have parameters of their own, or are one subgraph (`is_whole`), by name."""
    return {
        name: part
        for name, part in module.named_modules()
        if name and (is_whole(part) or any(True for _ in part.parameters(recurse=False)))
    }
