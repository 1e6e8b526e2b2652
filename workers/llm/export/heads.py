"""What a program makes of logits on the device, so that a caller need not read them."""

import torch
from torch.nn import functional

NO_TOKEN = -1  #: the token of a row that is out of bounds
CHUNK = 256  #: logits that one reduction sees: IREE 3.13 gives a whole row to a single wave of a GPU


def next_tokens(logits: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
    """Return the token `[batch]` with the largest of each row's logits `[batch, 1, vocab]`, the first of equal ones."""
    return torch.where(is_valid, argmax(logits[:, 0]), NO_TOKEN)


def argmax(values: torch.Tensor) -> torch.Tensor:
    """Return the index of the first largest value of each row `[rows, columns]`: its chunk first, then within that."""
    chunks = _in_chunks(values, float("-inf"))
    chunk = chunks.amax(-1).argmax(-1)
    return chunk * CHUNK + chunks[torch.arange(values.shape[0]), chunk].argmax(-1)


def sum_row(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over the last dimension: of each chunk first, then of these."""
    return _in_chunks(values, 0.0).sum(-1).sum(-1)


def _in_chunks(values: torch.Tensor, padding: float) -> torch.Tensor:
    missing = -values.shape[-1] % CHUNK
    padded = functional.pad(values, (0, missing), value=padding) if missing else values
    return padded.view(*values.shape[:-1], -1, CHUNK)
