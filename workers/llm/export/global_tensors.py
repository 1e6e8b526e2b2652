"""The tensors of a program that outlive a call, its parameters and KV cache, as MLIR globals."""

from dataclasses import dataclass

import torch
from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.mlir_ops import emit
from workers.llm.export.subgraphs import TensorMeta

PARAMETER_SCOPE = "model"
#: exclusive upper bound of the bytes of a cache tensor's initial value, which then are finite in every dtype
BYTES = 0x7B


@dataclass(frozen=True)
class GlobalTensor:
    """A global of the program: an archive entry of parameters, or a cache tensor."""

    symbol: str
    rank: int
    meta: TensorMeta
    cache_number: int | None = None  #: counts the cache tensors from 1; None for parameters

    @property
    def stored(self) -> TensorMeta:
        """Shape and dtype of the global itself.

        A cache of bytes is held as 16-bit words, which have enough bit patterns for all layers.
        """
        if self.cache_number is None or self.meta.dtype.itemsize > 1:
            return self.meta
        return TensorMeta((*self.meta.shape[:-1], self.meta.shape[-1] // 2), torch.int16)

    def initial(self) -> str:
        """Return the MLIR of the initial value.

        Each cache tensor has a different bit pattern: FuseGlobals (IREE 3.13) merges mutable globals that begin alike.
        """
        stored_type = mlir_ops.tensor_type(self.stored)
        if self.cache_number is None:
            return f'#flow.parameter.named<"{PARAMETER_SCOPE}"::"{self.symbol}"> : {stored_type}'
        assert self.cache_number < BYTES**2
        pattern = self.cache_number // BYTES << 8 | self.cache_number % BYTES
        return f"dense<0x{pattern:0{2 * self.stored.dtype.itemsize}X}> : {stored_type}"

    def declare(self, at: ir.InsertionPoint) -> None:
        """Declare the global in the program."""
        attributes = {
            "sym_name": ir.StringAttr.get(self.symbol),
            "sym_visibility": ir.StringAttr.get("private"),
            "type": ir.TypeAttr.get(mlir_ops.tensor_type(self.stored)),
            # on one device too: without it IREE 3.13 copies every weight and cache tensor that a layer takes
            "stream.affinity": mlir_ops.device(self.rank),
            "initial_value": ir.Attribute.parse(self.initial()),
        }
        if self.cache_number is not None:
            attributes["is_mutable"] = ir.UnitAttr.get()
        emit("util.global", at, **attributes)
