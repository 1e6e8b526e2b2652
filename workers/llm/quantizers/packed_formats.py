"""Unpacking int4 weights of GPTQ, AWQ and GGUF into the layout's values.

GGUF's blocks are those of ggml-common.h. Its Q4_1 and Q4_K have a minimum for each group, `scale * q + minimum`, which
the layout stores as an unrounded zero point, `-8 - minimum / scale`: equal up to the last bits of f32.
"""

from collections.abc import Mapping

import torch

from workers.llm.command_line import BadInput
from workers.llm.models.quantized_layout import INT4_OFFSET
from workers.llm.quantizers.quantized_weight import QuantizedWeight

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  #: where in a word each of eight columns lies
IN_ORDER = tuple(range(8))
GGUF_BLOCK = 32  #: values of Q4_0, Q4_1 and Q4_K that share a scale
GGUF_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144}  #: of a block; one of Q4_K has eight groups
LARGEST_ZERO = 2.0**15  #: of a group beyond it all values are the same to the last bits of f16


def from_gptq(parts: Mapping[str, torch.Tensor], has_old_zeros: bool) -> QuantizedWeight:
    """Unpack GPTQ's qweight [in / 8, out], qzeros [groups, out / 8] and scales [groups, out].

    The old checkpoint format stores zero points that are one less. Raises BadInput for groups by activation order.
    """
    values = _nibbles(parts["qweight"].T, IN_ORDER)
    zeros = _nibbles(parts["qzeros"], IN_ORDER).T + int(has_old_zeros)
    groups = zeros.shape[1]
    if "g_idx" in parts:
        in_order = torch.arange(values.shape[1]) // (values.shape[1] // groups)
        if not torch.equal(parts["g_idx"].to(in_order.dtype), in_order):
            raise BadInput("GPTQ has grouped columns by activation order, which the layout has no place for")
    return _quantized(values, zeros, parts["scales"].T)


def from_awq(parts: Mapping[str, torch.Tensor], has_old_zeros: bool = False) -> QuantizedWeight:
    """Unpack AWQ's qweight [in, out / 8], qzeros [groups, out / 8], both in AWQ's order, and scales [groups, out]."""
    values = _nibbles(parts["qweight"], AWQ_ORDER).T
    zeros = _nibbles(parts["qzeros"], AWQ_ORDER).T + int(has_old_zeros)
    return _quantized(values, zeros, parts["scales"].T)


def from_q4_0(blocks: torch.Tensor, rows: int) -> QuantizedWeight:
    """Unpack GGUF's Q4_0 [blocks, 18]: a half-precision scale, then 32 values v + 8, the first 16 in the low halves."""
    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    packed = blocks[:, 2:].to(torch.int8)
    values = torch.cat([packed & 15, (packed >> 4) & 15], dim=1) - INT4_OFFSET
    return QuantizedWeight(values.reshape(rows, -1), scale.reshape(rows, -1))


def from_q4_1(blocks: torch.Tensor, rows: int) -> QuantizedWeight:
    """Unpack GGUF's Q4_1 [blocks, 20]: half-precision scale and minimum, then 32 values 0 to 15, ordered as in Q4_0."""
    scale, minimum = _halves(blocks[:, :4])
    packed = blocks[:, 4:]
    values = torch.cat([packed & 15, packed >> 4], dim=1)
    return with_minimum(values.reshape(rows, -1), scale.reshape(rows, -1), minimum.reshape(rows, -1))


def from_q4_k(blocks: torch.Tensor, rows: int) -> QuantizedWeight:
    """Unpack GGUF's Q4_K [blocks, 144]: eight groups of 32, with six-bit scales and minima times a half-precision one.

    Bytes 4 to 11 hold the first four scales and minima in their low six bits, and the two high bits of the last four,
    whose low four bits are bytes 12 to 15. Each 32 bytes of values hold one group in their low halves and the next in
    the high.
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


def with_minimum(values: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> QuantizedWeight:
    """Return `scale * values + minimum`, of values 0 to 15 [rows, columns], scale and minimum [rows, groups]."""
    is_flat = minimum.abs() > LARGEST_ZERO * scale.abs()
    middle = minimum + scale * (15 / 2)
    zero = torch.where(is_flat, 0, -INT4_OFFSET - minimum / torch.where(is_flat, 1, scale))
    values = values.to(torch.int8).view(len(values), scale.shape[1], -1) - INT4_OFFSET
    values = torch.where(is_flat[..., None], 1, values)
    # where the scale is zero, all values are zero
    return QuantizedWeight(values.flatten(1), torch.where(is_flat, middle, scale), torch.where(scale == 0, 0, zero))


def _halves(pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two half-precision numbers in four bytes [blocks, 4], each as f32 [blocks, 1]."""
    both = pairs.contiguous().view(torch.float16).float()
    return both[:, :1], both[:, 1:]


def _nibbles(words: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Unpack int32 [rows, columns] into values 0 to 15 [rows, 8 * columns]; a word's i-th lies at `order[i]`."""
    shifts = torch.tensor(order) * 4
    return ((words.to(torch.int64)[..., None] >> shifts) & 15).flatten(-2)


def _quantized(values: torch.Tensor, zeros: torch.Tensor, scale: torch.Tensor) -> QuantizedWeight:
    values, zeros = (values - INT4_OFFSET).to(torch.int8), (zeros - INT4_OFFSET).to(torch.int8)
    return QuantizedWeight(values.contiguous(), scale.float().contiguous(), zeros.contiguous())
