"""The residual stream on all ranks: how hidden states, and what follows from them, get from rank to rank.

Ranks add in the order of their numbers, so that copies of a tensor are the same to the last bit. Tensors begin with the
dimensions of their tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from iree.compiler import ir

from workers.llm.export import mlir_ops
from workers.llm.export.mlir_ops import emit
from workers.llm.export.subgraphs import TensorMeta
from workers.llm.sharding.residual import Residual, residual_of, share_sizes

RankValues = Sequence[ir.Value]  #: one for each rank


@dataclass(frozen=True)
class ResidualStream:
    """The residual stream of one entry point."""

    tokens: int  #: of all rows together
    tp: int

    @property
    def is_in_shares(self) -> bool:
        """Whether each rank has some of the tokens, and not all of them."""
        return residual_of(self.tokens, self.tp) is Residual.SHARES

    @property
    def sizes(self) -> list[int]:
        """Tokens of each rank's share; that of the last one is padded to the others' size."""
        return share_sizes(self.tokens, self.tp)

    @property
    def local_tokens(self) -> int:
        """Tokens of the residual stream that each rank holds, with padding."""
        return self.sizes[0] if self.is_in_shares else self.tokens

    def local_meta(self, whole: TensorMeta) -> TensorMeta:
        """Return what a rank has of a tensor of all tokens."""
        if not self.is_in_shares:
            return whole
        width = _width(whole, self.tokens)
        rows = (1,) * (len(whole.shape) - len(width) - 1)
        return TensorMeta((*rows, self.sizes[0], *width), whole.dtype)

    def whole_meta(self, local: TensorMeta) -> TensorMeta:
        """Return the shape of all tokens of a tensor that a rank has its share of."""
        return TensorMeta((self.tokens, *_width(local, self.sizes[0])), local.dtype) if self.is_in_shares else local

    def sum(self, parts: RankValues, whole: TensorMeta, at: ir.InsertionPoint) -> list[ir.Value]:
        """Return the stream that the ranks' partial sums make."""
        if not self.is_in_shares:
            return sum_everywhere(parts, at)
        shares = [self._cut(part, whole, at) for part in parts]
        sent = [_sent([share[rank] for share in shares], rank, at) for rank in range(self.tp)]
        mlir_ops.end_step(at)
        return self._padded([sum_parts(values, at) for values in sent], whole, at)

    def spread(self, value: ir.Value, whole: TensorMeta, at: ir.InsertionPoint) -> list[ir.Value]:
        """Return the stream of a tensor of rank 0."""
        if not self.is_in_shares:
            return _everywhere(value, self.tp, at)
        shares = self._cut(value, whole, at)
        return self._padded([transfer(share, 0, rank, at) for rank, share in enumerate(shares)], whole, at)

    def gather(self, values: RankValues, whole: TensorMeta, at: ir.InsertionPoint) -> ir.Value:
        """Return all tokens on rank 0."""
        return self._gathered(self._trimmed(values, at), whole, 0, at) if self.is_in_shares else values[0]

    def gather_everywhere(self, values: RankValues, whole: TensorMeta, at: ir.InsertionPoint) -> list[ir.Value]:
        """Return all tokens on every rank."""
        if not self.is_in_shares:
            return list(values)
        shares = self._trimmed(values, at)
        sent = [_sent(shares, rank, at) for rank in range(self.tp)]
        mlir_ops.end_step(at)
        # IREE 3.13 would put the shares together once for each reader of the whole, if this were not a transfer
        return [
            mlir_ops.transfer(mlir_ops.reshape(mlir_ops.concat(parts, 0, at), whole.shape, at), rank, at)
            for rank, parts in enumerate(sent)
        ]

    def take(self, copies: RankValues, whole: TensorMeta, at: ir.InsertionPoint) -> list[ir.Value]:
        """Return the stream of a tensor that each rank has all of."""
        if not self.is_in_shares:
            return list(copies)
        return self._padded([self._cut(copy, whole, at)[rank] for rank, copy in enumerate(copies)], whole, at)

    def _cut(self, value: ir.Value, whole: TensorMeta, at: ir.InsertionPoint) -> list[ir.Value]:
        """Return all ranks' shares `[tokens, width]` of a tensor."""
        rows = mlir_ops.reshape(value, (self.tokens, *_width(whole, self.tokens)), at)
        ends = accumulate(self.sizes)
        return [mlir_ops.rows(rows, end - size, size, at) for end, size in zip(ends, self.sizes, strict=True)]

    def _padded(self, shares: RankValues, whole: TensorMeta, at: ir.InsertionPoint) -> list[ir.Value]:
        local = self.local_meta(whole)
        return [mlir_ops.reshape(mlir_ops.pad_rows(share, self.sizes[0], at), local.shape, at) for share in shares]

    def _trimmed(self, values: RankValues, at: ir.InsertionPoint) -> list[ir.Value]:
        """Return the shares `[tokens, width]` without padding."""
        shares = []
        for value, size in zip(values, self.sizes, strict=True):
            width = _width(mlir_ops.meta_of(value), self.sizes[0])
            shares.append(mlir_ops.rows(mlir_ops.reshape(value, (self.sizes[0], *width), at), 0, size, at))
        return shares

    def _gathered(self, shares: RankValues, whole: TensorMeta, rank: int, at: ir.InsertionPoint) -> ir.Value:
        return mlir_ops.reshape(mlir_ops.concat(_sent(shares, rank, at), 0, at), whole.shape, at)


def _width(meta: TensorMeta, tokens: int) -> tuple[int, ...]:
    """Return the dimensions behind those of the tokens. Raises NotImplementedError where these are not the first."""
    for count in range(1, len(meta.shape) + 1):
        if prod(meta.shape[:count]) == tokens:
            return meta.shape[count:]
    raise NotImplementedError(f"the first dimensions of a tensor {list(meta.shape)} are not its {tokens} tokens")


def sum_everywhere(parts: RankValues, at: ir.InsertionPoint) -> list[ir.Value]:
    """Return the sum of the ranks' parts as each rank computes it by itself: one step of transfers."""
    if len(parts) == 1:
        return list(parts)
    sent = [_sent(parts, rank, at) for rank in range(len(parts))]
    mlir_ops.end_step(at)
    return [sum_parts(values, at) for values in sent]


def concat_at_home(parts: RankValues, at: ir.InsertionPoint) -> ir.Value:
    """Return the ranks' columns on rank 0, side by side."""
    if len(parts) == 1:
        return parts[0]
    columns = _sent(parts, 0, at)
    mlir_ops.end_step(at)
    return mlir_ops.concat(columns, len(mlir_ops.meta_of(columns[0]).shape) - 1, at)


def sum_parts(parts: RankValues, at: ir.InsertionPoint) -> ir.Value:
    """Sum tensors of one rank in f32, whatever the dtype: eight f16 roundings would show in the logits."""
    if len(parts) == 1:
        return parts[0]
    whole = mlir_ops.meta_of(parts[0])
    is_narrow = whole.dtype != torch.float32
    wide = mlir_ops.tensor_type(TensorMeta(whole.shape, torch.float32))
    if is_narrow:
        parts = [emit("arith.extf", at, [part], [wide]).result for part in parts]
    total = parts[0]
    for part in parts[1:]:
        total = emit("arith.addf", at, [total, part], [wide]).result
    return emit("arith.truncf", at, [total], [mlir_ops.tensor_type(whole)]).result if is_narrow else total


def _everywhere(value: ir.Value, tp: int, at: ir.InsertionPoint) -> list[ir.Value]:
    return [transfer(value, 0, rank, at) for rank in range(tp)]


def _sent(values: RankValues, rank: int, at: ir.InsertionPoint) -> list[ir.Value]:
    """Return every rank's value on one rank."""
    return [transfer(value, source, rank, at) for source, value in enumerate(values)]


def transfer(value: ir.Value, source: int, rank: int, at: ir.InsertionPoint) -> ir.Value:
    """Return the value of rank `source` on `rank`."""
    return value if source == rank else mlir_ops.transfer(value, rank, at)
