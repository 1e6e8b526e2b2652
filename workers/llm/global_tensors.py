"""The tensors of a program that outlive a call: its parameters and its KV cache, as MLIR's globals."""

from dataclasses import dataclass

import torch
from iree.compiler import ir

from workers.llm import mlir
from workers.llm.mlir import emit
from workers.llm.pieces import Meta

PARAMETER_SCOPE = "model"
#: what the bytes of a cache tensor's initial value are below: finite numbers in every type
BYTES = 0x7B


@dataclass(frozen=True)
class Global:
    """A parameter, or a part of the cache; `cache_number` counts those."""

    symbol: str
    rank: int
    meta: Meta
    cache_number: int | None = None

    @property
    def stored(self) -> Meta:
        """What the global itself is: a cache of bytes is held as words, which have patterns enough for all layers."""
        if self.cache_number is None or self.meta.dtype.itemsize > 1:
            return self.meta
        return Meta((*self.meta.shape[:-1], self.meta.shape[-1] // 2), torch.int16)

    def initial(self) -> str:
        """What it is before the first call, in MLIR.

        Each part of the cache has another bit pattern: FuseGlobals (3.13) merges mutable globals that begin alike.
        """
        kind = mlir.tensor(self.stored)
        if self.cache_number is None:
            return f'#flow.parameter.named<"{PARAMETER_SCOPE}"::"{self.symbol}"> : {kind}'
        assert self.cache_number < BYTES**2
        pattern = self.cache_number // BYTES << 8 | self.cache_number % BYTES
        return f"dense<0x{pattern:0{2 * self.stored.dtype.itemsize}X}> : {kind}"

    def declare(self, at: ir.InsertionPoint) -> None:
        """Write the global into the program."""
        attributes = {
            "sym_name": ir.StringAttr.get(self.symbol),
            "sym_visibility": ir.StringAttr.get("private"),
            "type": ir.TypeAttr.get(mlir.tensor(self.stored)),
            # on one device too: without it IREE 3.13 copies every weight and cache tensor that a layer is given
            "stream.affinity": mlir.device(self.rank),
            "initial_value": ir.Attribute.parse(self.initial()),
        }
        if self.cache_number is not None:
            attributes["is_mutable"] = ir.UnitAttr.get()
        emit("util.global", at, **attributes)
