"""int4 weights as GPTQ, AWQ and GGUF pack them, as the layout has them.

GGUF's blocks are those of ggml-common.h. Its Q4_1 and Q4_K have a least value for each group, `scale * q + minimum`,
which the layout has as a zero point that is not rounded, `-8 - minimum / scale`: the same to the last bits of f32.
"""

from collections.abc import Mapping

import torch

from workers.llm.program import BadInput
from workers.llm.quantizers.writing import INT4_OFFSET, Quantized

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  #: where in a word each of eight columns lies
IN_ORDER = tuple(range(8))
GGUF_BLOCK = 32  #: values of Q4_0, Q4_1 and Q4_K that share a scale
GGUF_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144}  #: of a block; one of Q4_K has eight groups
LARGEST_ZERO = 2.0**15  #: of a group beyond it all values are the same to the last bits of f16


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


def from_q4_1(blocks: torch.Tensor, rows: int) -> Quantized:
    """GGUF's Q4_1: bytes [blocks, 20], scale and minimum in half precision, 32 values as in Q4_0, from 0 to 15."""
    scale, minimum = _halves(blocks[:, :4])
    packed = blocks[:, 4:]
    values = torch.cat([packed & 15, packed >> 4], dim=1)
    return with_minimum(values.reshape(rows, -1), scale.reshape(rows, -1), minimum.reshape(rows, -1))


def from_q4_k(blocks: torch.Tensor, rows: int) -> Quantized:
    """GGUF's Q4_K: bytes [blocks, 144], eight groups of 32 whose scales and minima are of six bits times a half.

    Bytes 4 to 15 have the low bits of the first four scales and minima, and in their highest two bits those of the
    last four, whose low bits follow. Of values, 32 bytes have one group in their low halves and the next in the high.
    """
    scale, minimum = _halves(blocks[:, :4])
    first, second, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (low & 15) | ((first >> 2) & 48)], dim=1)
    minima = torch.cat([second & 63, (low >> 4) | ((second >> 2) & 48)], dim=1)
    packed = blocks[:, 16:].reshape(len(blocks), 4, 1, GGUF_BLOCK)
    values = torch.cat([packed & 15, packed >> 4], dim=2)
    return with_minimum(
        values.reshape(rows, -1), (scale * scales).reshape(rows, -1), -(minimum * minima).reshape(rows, -1)
    )


def with_minimum(values: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> Quantized:
    """`scale * values + minimum` of values from 0 to 15 [rows, columns] in groups [rows, groups]."""
    is_flat = minimum.abs() > LARGEST_ZERO * scale.abs()
    middle = minimum + scale * (15 / 2)
    zero = torch.where(is_flat, 0, -INT4_OFFSET - minimum / torch.where(is_flat, 1, scale))
    values = values.to(torch.int8).view(len(values), scale.shape[1], -1) - INT4_OFFSET
    values = torch.where(is_flat[..., None], 1, values)
    # a scale of zero is that of zeros
    return Quantized(values.flatten(1), torch.where(is_flat, middle, scale), torch.where(scale == 0, 0, zero))


def _halves(two: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Four bytes [blocks, 4] as two half-precision numbers [blocks, 1] each, in f32."""
    both = two.contiguous().view(torch.float16).float()
    return both[:, :1], both[:, 1:]


def _nibbles(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """int32 [rows, columns] as values from 0 to 15 [rows, 8 * columns]; the i-th of a word lies at `order[i]`."""
    shifts = torch.tensor(order) * 4
    return ((words.to(torch.int64)[..., None] >> shifts) & 15).flatten(-2)


def _quantized(values: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor) -> Quantized:
    values, zeros = (values - INT4_OFFSET).to(torch.int8), (zeros - INT4_OFFSET).to(torch.int8)
    return Quantized(values.contiguous(), scale.float().contiguous(), zeros.contiguous())
