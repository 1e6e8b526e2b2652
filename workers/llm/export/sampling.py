"""Sampling on the device: Gumbel-max with temperature, top-k and top-p, all rows at once and without sorting.

IREE 3.13 lowers a top-k to a bubble sort, which doesn't end for a real vocabulary. Here the logit from which on tokens
are kept is found digit by digit: in each pass, the tokens or the probability above several thresholds are summed at
once. The thresholds are numbers of the logits' own dtype, counted from the smallest, so the last digit makes the result
exact.
"""

import torch

from workers.llm.export.heads import NO_TOKEN, argmax, sum_row

DIGIT_BITS = 2  #: found in one pass over the logits
_BITS = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 16}
_INTEGERS = {32: torch.int32, 16: torch.int16}


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seeds: torch.Tensor,
) -> torch.Tensor:
    """Return a token for each row of `logits` `[batch, 1, vocab]`; all else is `[batch]`.

    Of a row's `top_k` tokens (0: all), it keeps the fewest with a probability of `top_p` at that temperature; of equal
    logits all are kept. Temperature 0 is the largest logit. The same seed and logits give the same token. A row whose
    parameters or logits are no such numbers gets -1.
    """
    row = logits[:, 0]
    scores, largest = row.float(), row.float().amax(-1, keepdim=True)
    is_greedy = temperature == 0
    scaled = (scores - largest) / torch.where(is_greedy, 1.0, temperature)[:, None]
    weights = scaled.exp()
    first = smallest_kept(row, torch.ones_like(weights), torch.where(top_k > 0, top_k, row.shape[1]).float())
    kept = torch.where(row >= first[:, None], weights, 0.0)
    first = torch.where(top_p < 1, torch.maximum(first, smallest_kept(row, kept, top_p * sum_row(kept))), first)
    drawn = torch.where(row >= first[:, None], scaled + gumbel_noise(seeds, row.shape[1]), float("-inf"))
    chosen = argmax(torch.where(is_greedy[:, None], scores, drawn))
    return torch.where(_is_valid(row, temperature, top_k, top_p), chosen, NO_TOKEN)


def _is_valid(row: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    is_warm = torch.logical_and(temperature >= 0, temperature < float("inf"))
    is_share = torch.logical_and(top_p > 0, top_p <= 1)
    largest = row.float().amax(-1)
    has_numbers = torch.logical_and(largest > float("-inf"), largest < float("inf"))
    return torch.logical_and(torch.logical_and(is_warm, is_share), torch.logical_and(top_k >= 0, has_numbers))


def smallest_kept(values: torch.Tensor, weights: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """Return for each row the largest number such that the `weights` of values from it on add up to `least` `[rows]`.

    It is the lowest number where all of them are less.
    """
    bits = _BITS[values.dtype]
    digits = torch.arange(1, 1 << DIGIT_BITS)
    rank = torch.zeros(values.shape[0], dtype=torch.int64)
    for shift in range(bits - DIGIT_BITS, -1, -DIGIT_BITS):
        thresholds = number_at(rank[:, None] + digits * (1 << shift), values.dtype)
        is_above = values[:, None] >= thresholds[:, :, None]
        sums = sum_row(torch.where(is_above, weights[:, None], 0.0))
        rank = rank + (sums >= least[:, None]).to(torch.int64).sum(-1) * (1 << shift)
    return number_at(rank, values.dtype)


def number_at(rank: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the floating-point number of a rank among all of `dtype`, which has 2**bits; at least -infinity."""
    bits = _BITS[dtype]
    half = 1 << (bits - 1)
    lowest = half - 1 - int(torch.tensor(float("inf"), dtype=dtype).view(_INTEGERS[bits]))
    rank = rank.clamp(min=lowest)
    pattern = torch.where(rank >= half, rank - half, -1 - rank)  # negative numbers have their order reversed
    return pattern.to(_INTEGERS[bits]).view(dtype)


def gumbel_noise(seeds: torch.Tensor, columns: int) -> torch.Tensor:
    """Return independent noise `[rows, columns]` of the standard Gumbel distribution, a function of seed and column."""
    low, high = seeds.to(torch.int32), (seeds >> 32).to(torch.int32)
    row = _mix(_mix(low + 0x3C6EF372) + high)[:, None]
    column = torch.arange(columns, dtype=torch.int32)[None] * 0x1E3779B9
    uniform = ((_mix(_mix(column + row) + row) & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform))  # small numbers, which make the largest noise, are the exact ones


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Mix the bits of 32-bit integers: the finalizer of MurmurHash3 (Austin Appleby, public domain)."""
    value = torch.bitwise_xor(value, (value >> 16) & 0xFFFF) * -2048144789
    value = torch.bitwise_xor(value, (value >> 13) & 0x7FFFF) * -1028477387
    return torch.bitwise_xor(value, (value >> 16) & 0xFFFF)
