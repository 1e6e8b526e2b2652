"""The globals of a program, by what they hold: archive entries of parameters, and cache tensors."""

from collections.abc import Sequence

import torch
from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.global_tensors import GlobalTensor
from workers.llm.export.mlir_ops import emit
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.weights.archive_layout import ArchiveLayout, ParameterSlot
from workers.llm.weights.parameters import symbol_of


class ProgramGlobals:
    """Creates globals on first use.

    `tied` maps parameters to the name under which they are stored; `archives` are the layouts of the ranks' archives.
    """

    def __init__(self, tied: dict[str, str], archives: Sequence[ArchiveLayout]) -> None:
        self.tied = tied
        self.archives = archives
        self._globals: dict[str, GlobalTensor] = {}

    def slot(self, name: str, rank: int) -> ParameterSlot:
        """Return where a parameter lies in a rank's archive."""
        return self.archives[rank].slots[self.tied.get(name, name)]

    def entry_meta(self, slot: ParameterSlot, rank: int) -> TensorMeta:
        """Return the flat tensor of the whole archive entry that a parameter lies in."""
        archive = self.archives[rank]
        dtype = archive.types[slot.entry] or torch.uint8
        return TensorMeta((archive.sizes[slot.entry] // dtype.itemsize,), dtype)

    def load(
        self, name: str, rank: int, meta: TensorMeta, at: ir.InsertionPoint, *, is_cache: bool = False
    ) -> ir.Value:
        """Load the tensor `name` of a rank."""
        tensor = self._global_for(name, rank, meta, is_cache)
        stored_type = mlir_ops.tensor_type(tensor.stored)
        value = emit("util.global.load", at, results=[stored_type], **_named(tensor)).result
        return value if tensor.stored == meta else mlir_ops.bitcast(value, meta, at)

    def store_cache(self, value: ir.Value, name: str, rank: int, meta: TensorMeta, at: ir.InsertionPoint) -> None:
        """Store an updated cache tensor of a rank."""
        tensor = self._global_for(name, rank, meta, is_cache=True)
        stored = value if tensor.stored == meta else mlir_ops.bitcast(value, tensor.stored, at)
        emit("util.global.store", at, [stored], **_named(tensor))

    def declare(self, at: ir.InsertionPoint) -> None:
        """Declare all globals in the program."""
        for tensor in self._globals.values():
            tensor.declare(at)

    def _global_for(self, name: str, rank: int, meta: TensorMeta, is_cache: bool) -> GlobalTensor:
        symbol = f"{'cache.' if is_cache else ''}{symbol_of(self.tied.get(name, name), rank)}"
        if symbol not in self._globals:
            caches = sum(tensor.cache_number is not None for tensor in self._globals.values())
            self._globals[symbol] = GlobalTensor(symbol, rank, meta, caches + 1 if is_cache else None)
        return self._globals[symbol]


def _named(tensor: GlobalTensor) -> dict[str, ir.Attribute]:
    return {"global": ir.FlatSymbolRefAttr.get(tensor.symbol)}
