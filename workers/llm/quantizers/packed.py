"""int4 weights as GPTQ, AWQ and GGUF pack them, as the layout has them."""

from collections.abc import Mapping

import torch

from workers.llm.program import BadInput
from workers.llm.quantizers.writing import INT4_OFFSET, Quantized

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  #: where in a word each of eight columns lies
IN_ORDER = tuple(range(8))
GGUF_BLOCK = 32  #: values of Q4_0 and Q4_1 that share a scale


def from_gptq(parts: Mapping[str, torch.Tensor], has_old_zeros: bool) -> Quantized:
    """GPTQ: qweight [in / 8, out], qzeros [groups, out / 8], scales [groups, out]; the old form's zeros are one less.

    Raises BadInput where columns are grouped out of order.
    """
    values = _nibbles(parts["qweight"].T, IN_ORDER)
    zeros = _nibbles(parts["qzeros"], IN_ORDER).T + int(has_old_zeros)
    groups = zeros.shape[1]
    if "g_idx" in parts:
        in_order = torch.arange(values.shape[1]) // (values.shape[1] // groups)
        if not torch.equal(parts["g_idx"].to(in_order.dtype), in_order):
            raise BadInput("GPTQ has grouped columns by activation order, which the layout has no place for")
    return _quantized(values, zeros, parts["scales"].T)


def from_awq(parts: Mapping[str, torch.Tensor], has_old_zeros: bool = False) -> Quantized:
    """AWQ: qweight [in, out / 8] and qzeros [groups, out / 8] in AWQ's order, scales [groups, out]."""
    values = _nibbles(parts["qweight"], AWQ_ORDER).T
    zeros = _nibbles(parts["qzeros"], AWQ_ORDER).T + int(has_old_zeros)
    return _quantized(values, zeros, parts["scales"].T)


def from_q4_0(blocks: torch.Tensor, rows: int) -> Quantized:
    """GGUF's Q4_0: bytes [blocks, 18], a half-precision scale and 32 values v + 8, the first 16 in the low halves."""
    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    packed = blocks[:, 2:].to(torch.int8)
    values = torch.cat([packed & 15, (packed >> 4) & 15], dim=1) - INT4_OFFSET
    return Quantized(values.reshape(rows, -1), scale.reshape(rows, -1))


def _nibbles(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """int32 [rows, columns] as values from 0 to 15 [rows, 8 * columns]; the i-th of a word lies at `order[i]`."""
    shifts = torch.tensor(order) * 4
    return ((words.to(torch.int64)[..., None] >> shifts) & 15).flatten(-2)


def _quantized(values: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor) -> Quantized:
    values, zeros = (values - INT4_OFFSET).to(torch.int8), (zeros - INT4_OFFSET).to(torch.int8)
    return Quantized(values.contiguous(), scale.float().contiguous(), zeros.contiguous())
