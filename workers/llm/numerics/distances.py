"""Distances between a program's logits and the reference's. Pure functions of tensors."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class LogitDistances:
    """The distances between two sets of logits, one value for each position: [positions]."""

    max_logit: torch.Tensor
    mean_logit: torch.Tensor
    same_choice: torch.Tensor  #: 1 where both have their largest logit at the same token
    kl: torch.Tensor  #: KL(reference || program), in nats


def compare_logits(reference: torch.Tensor, measured: torch.Tensor) -> LogitDistances:
    """Compare logits [..., V], whose leading dimensions are the positions."""
    reference, measured = reference.flatten(0, -2).double(), measured.flatten(0, -2).double()
    difference = (reference - measured).abs()
    reference_log, measured_log = reference.log_softmax(-1), measured.log_softmax(-1)
    return LogitDistances(
        max_logit=difference.amax(-1),
        mean_logit=difference.mean(-1),
        same_choice=(reference.argmax(-1) == measured.argmax(-1)).double(),
        kl=(reference_log.exp() * (reference_log - measured_log)).sum(-1),
    )


def concatenate(parts: list[LogitDistances]) -> LogitDistances:
    """Concatenate the positions of all parts."""
    names = ("max_logit", "mean_logit", "same_choice", "kl")
    return LogitDistances(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def summarize(distances: LogitDistances) -> dict[str, Any]:
    """Return the figures of the report; a value that is not finite is None."""
    return {
        "max_logit_diff": finite_or_none(distances.max_logit.max()),
        "mean_logit_diff": finite_or_none(distances.mean_logit.mean()),
        "argmax_agreement": finite_or_none(distances.same_choice.mean()),
        "kl_mean": finite_or_none(distances.kl.mean()),
        "kl_max": finite_or_none(distances.kl.max()),
        "positions": len(distances.kl),
        "finite": bool(distances.max_logit.isfinite().all()),
    }


def losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the negative log likelihood of each target [B, N] under its logits [B, N, V], in nats."""
    logits = logits.double()
    return logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]


def perplexity(token_losses: torch.Tensor) -> float | None:
    """Return the exponential of the mean loss; None when it is not finite."""
    return finite_or_none(token_losses.mean().exp())


def finite_or_none(value: torch.Tensor) -> float | None:
    """Return a scalar as a number that JSON can hold, else None."""
    return value.item() if value.isfinite() else None
