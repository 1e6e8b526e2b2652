"""Where the residual stream lies between the blocks that ranks share. Pure.

A rank's part of a block yields a partial sum of every token, and needs every token's hidden state. Between two blocks
the partial sums are added, to the residual stream too, and normalized. No rank does that for the others, because its
links would carry everything:

- COPIES: each rank takes all partial sums and does all of it. One step of transfers, each as large as the tensor.
- SHARES: each rank takes its share of the tokens' partial sums, and sends what it makes of them to all others (sequence
  parallelism, arXiv:2205.05198). Two steps, each 1/tp of the tensor.
"""

from enum import StrEnum

LEAST_SHARE = 16  #: tokens


class Residual(StrEnum):
    """How ranks hold the residual stream."""

    COPIES = "copies"  #: all of it on each rank
    SHARES = "shares"  #: each rank has some of the tokens


def residual_of(tokens: int, tp: int) -> Residual:
    """Return how `tp` ranks hold the residual stream of a call with so many tokens, in all rows together.

    A step takes about 10 us until all ranks have begun it, and a link carries 64 GB/s (MI300X), so the second step pays
    from about 1 MB on. Hidden states of 8B to 405B models in 16 bits have 8 to 32 kB a token: 16 tokens for each of 8
    ranks are 1 to 4 MB.
    """
    return Residual.SHARES if tp > 1 and tokens >= max(LEAST_SHARE, tp) * tp else Residual.COPIES


def share_sizes(tokens: int, tp: int) -> list[int]:
    """Return how many tokens each rank has: as many on each, but for the last one, which has what is left."""
    size = -(-tokens // tp)
    return [min(size, tokens - rank * size) for rank in range(tp)]
