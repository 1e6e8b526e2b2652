"""Stored values in 4 bits unpacked, and in fp8 brought from one kind to the other. Pure functions."""

import torch

from workers.llm.quantized_layout import PER_WORD

INT4_OFFSET = 8  #: a stored nibble is the value and 8
NEGATIVE_ZERO = 0x80  #: in e4m3fn; in e4m3fnuz the same bits are not a number


def unpack_int4(words: torch.Tensor) -> torch.Tensor:
    """int8 values from -8 to 7, [rows, columns], of int32 [rows, columns / 8]; the first is in the lowest bits."""
    nibbles = (words[..., None] >> torch.arange(0, 4 * PER_WORD, 4, dtype=torch.int32)) & 0xF
    return (nibbles - INT4_OFFSET).to(torch.int8).reshape(words.shape[0], -1)


def fnuz_of(weight: torch.Tensor) -> torch.Tensor:
    """The bits of float8_e4m3fn as float8_e4m3fnuz, where they mean half: the scale is to be doubled.

    Raises ValueError for what is not a number, which a weight never is.
    """
    bits = weight.view(torch.uint8)
    if bool(((bits & 0x7F) == 0x7F).any()):
        raise ValueError("not a number")
    return torch.where(bits == NEGATIVE_ZERO, 0, bits).view(torch.float8_e4m3fnuz)
