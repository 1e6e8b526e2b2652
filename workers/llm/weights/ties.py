"""Parameters that a config ties, although their files hold two different tensors: transformers does not tie these."""

from collections.abc import Mapping

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workers.llm.weights.checkpoint import StoredTensor
from workers.llm.weights.stored_names import stored_as

CHUNK_BYTES = 2 << 20


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return the names that stand for another parameter: `lm_head.weight` -> `model.embed_tokens.weight`."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)
        if owner != name:
            tied[name] = owner
    return tied


def untie(model: nn.Module, stored: Mapping[str, StoredTensor], mode: FakeTensorMode) -> list[str]:
    """Give the parameters of a meta model that are stored with other values than the one they are tied to their own.

    Returns a warning for each.
    """
    warnings = []
    for name, owner in tied_names(model).items():
        parameter = model.get_parameter(name)
        tensors = [_find(stored, tied, tuple(parameter.shape)) for tied in (name, owner)]
        if tensors[0] and tensors[1] and not _is_equal(tensors[0], tensors[1]):
            warnings.append(f"the config ties {name} to {owner}, but they are stored with different values")
            module, _, leaf = name.rpartition(".")
            with mode:
                setattr(model.get_submodule(module), leaf, nn.Parameter(torch.empty_like(parameter)))
    return warnings


def _find(stored: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...]) -> StoredTensor | None:
    return next((stored[group[0]] for group in stored_as(name, shape) if group[0] in stored), None)


def _is_equal(first: StoredTensor, second: StoredTensor) -> bool:
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    pairs = zip(first.rows(CHUNK_BYTES), second.rows(CHUNK_BYTES), strict=True)
    return all(torch.equal(rows, others) for (_, rows), (_, others) in pairs)
