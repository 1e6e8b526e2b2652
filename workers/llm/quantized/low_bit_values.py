"""Unpacking stored int4 values, and converting fp8 from one kind to the other. Pure functions."""

import torch

from workers.llm.models.quantized_layout import INT4_OFFSET, PER_WORD

NEGATIVE_ZERO = 0x80  #: in e4m3fn; in e4m3fnuz the same bits are not a number


def unpack_int4(words: torch.Tensor) -> torch.Tensor:
    """Unpack int32 [rows, columns / 8] into int8 values -8 to 7 [rows, columns]; the first is in the lowest bits."""
    nibbles = (words[..., None] >> torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32)) & 0xF
    return (nibbles - INT4_OFFSET).to(torch.int8).reshape(words.shape[0], -1)


def e4m3fn_to_fnuz(weight: torch.Tensor) -> torch.Tensor:
    """Return float8_e4m3fn bits as float8_e4m3fnuz, in which they mean half as much: double the scale.

    Raises ValueError for NaN, which no weight contains.
    """
    bits = weight.view(torch.uint8)
    if bool(((bits & 0x7F) == 0x7F).any()):
        raise ValueError("not a number")
    return torch.where(bits == NEGATIVE_ZERO, 0, bits).view(torch.float8_e4m3fnuz)
