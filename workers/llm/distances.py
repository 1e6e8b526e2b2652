"""How far a program's logits are from the reference's. Pure functions of tensors."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Distances:
    """Two sets of logits compared, one value a position: [positions]."""

    max_logit: torch.Tensor
    mean_logit: torch.Tensor
    same_choice: torch.Tensor  #: 1 where both have their largest logit at the same token
    kl: torch.Tensor  #: KL(reference || program), in nats


def distances(reference: torch.Tensor, measured: torch.Tensor) -> Distances:
    """Compare logits [..., V]; the leading dimensions are the positions."""
    reference, measured = reference.flatten(0, -2).double(), measured.flatten(0, -2).double()
    difference = (reference - measured).abs()
    wanted, got = reference.log_softmax(-1), measured.log_softmax(-1)
    return Distances(
        max_logit=difference.amax(-1),
        mean_logit=difference.mean(-1),
        same_choice=(reference.argmax(-1) == measured.argmax(-1)).double(),
        kl=(wanted.exp() * (wanted - got)).sum(-1),
    )


def joined(parts: list[Distances]) -> Distances:
    """All positions of the parts as one."""
    names = ("max_logit", "mean_logit", "same_choice", "kl")
    return Distances(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def summary(of: Distances) -> dict[str, Any]:
    """The report's figures; a value that is not finite is None."""
    return {
        "max_logit_diff": finite_or_none(of.max_logit.max()),
        "mean_logit_diff": finite_or_none(of.mean_logit.mean()),
        "argmax_agreement": finite_or_none(of.same_choice.mean()),
        "kl_mean": finite_or_none(of.kl.mean()),
        "kl_max": finite_or_none(of.kl.max()),
        "positions": len(of.kl),
        "finite": bool(of.max_logit.isfinite().all()),
    }


def losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Negative log likelihood of each target [B, N] under its logits [B, N, V], in nats."""
    logits = logits.double()
    return logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]


def perplexity(token_losses: torch.Tensor) -> float | None:
    """The exponential of the mean loss; None when it is not finite."""
    return finite_or_none(token_losses.mean().exp())


def finite_or_none(value: torch.Tensor) -> float | None:
    """A number that JSON can hold."""
    return value.item() if value.isfinite() else None
