"""What a program makes of logits on the device, so that a caller need not read them."""

import torch
from torch.nn import functional

NO_TOKEN = -1  #: the token of a row that is out of bounds
CHUNK = 256  #: logits that one reduction sees: IREE 3.13 gives a whole row to a single wave of a GPU


def next_tokens(logits: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
    """Return the token `[batch]` with the largest of each row's logits `[batch, 1, vocab]`, the first of equal ones."""
    return torch.where(is_valid, argmax(logits[:, 0]), NO_TOKEN)


def score(
    logits: torch.Tensor, targets: torch.Tensor, is_token: torch.Tensor | None, is_valid: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log probabilities of `targets` after each token, the most probable tokens and theirs: `[batch, tokens]`.

    What is behind a row's tokens, and a row that is out of bounds, has none: NaN and -1; nor has a target that is none.
    """
    vocab_size = logits.shape[-1]
    scores = logits.float().reshape(-1, vocab_size)
    best = argmax(scores)
    largest = scores.amax(-1)
    total = sum_row((scores - largest[:, None]).exp()).log()
    known = targets.clamp(0, vocab_size - 1)
    logprobs = scores.gather(1, known.reshape(-1, 1))[:, 0] - largest - total
    is_scored = is_valid[:, None] if is_token is None else torch.logical_and(is_valid[:, None], is_token)
    return (
        torch.where(torch.logical_and(is_scored, known == targets), logprobs.view(targets.shape), float("nan")),
        torch.where(is_scored, best.view(targets.shape), NO_TOKEN),
        torch.where(is_scored, -total.view(targets.shape), float("nan")),
    )


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
