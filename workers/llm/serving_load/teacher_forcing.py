"""Whether a server's tokens are the model's: each served sequence in one pass through the reference.

Texts can't be compared: one near tie changes all that follows it. So the reference sees the prompt with the tokens that
were served, and each of these is held against its own choice in that place.
"""

from collections.abc import Sequence
from typing import Any

import torch

from workers.llm.numerics.reference import ReferenceModel
from workers.llm.serving_load.client import CompletionRequest


def compare_served(
    reference: ReferenceModel, requests: Sequence[CompletionRequest], served: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return how many tokens are not the reference's choice, and the largest gap between the logits of both."""
    gaps = torch.cat(
        [
            reference.choice_gaps(torch.tensor([[*request.prompt, *tokens]]), len(request.prompt))[0]
            for request, tokens in zip(requests, served, strict=True)
        ]
    )
    return {
        "sequences": len(requests),
        "tokens": gaps.numel(),
        "other_tokens": int((gaps > 0).sum()),
        "max_gap": float(gaps.max()),
    }
