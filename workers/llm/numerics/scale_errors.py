"""Estimating how far the scale of each linear module is off, from the differences that it makes in the logits.

A wrong scale moves the logits in a direction that the reference's gradients know, and rounding moves them in all. So a
projection on that direction shows a scale error long before the size of the differences does: in programs in fp8 and
int8, inputs between two values are rounded to the other at times, and that noise then spreads over all later layers.

With r the differences, whitened (the directions in which they are largest count less), g the derivative of the logits
with respect to the logarithm of a module's scale, whitened too, and rows i of independent texts, the estimate is
sum(r_i . g_i) / sum(g_i . g_i). The products r . g of all modules take one backward pass a row. The expected square of
z . g for random signs z is g . g (Hutchinson's estimator), which takes one for each probe.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from workers.llm.numerics.quantized_reference import QuantizedReference

PROBES = 2  #: random vectors for each row: with 16 rows, the estimates' sizes are within a fourth
SIGMAS = 4.0  #: what chance makes in less than one of 10,000 modules


@dataclass(frozen=True)
class ScoredRow:
    """A prompt, its continuation, and the program's logits."""

    prompt: torch.Tensor  #: [T]
    continuation: torch.Tensor  #: [N]
    logits: torch.Tensor  #: [N + 1, V]


@dataclass(frozen=True)
class ScaleError:
    """The module whose scale is most certainly wrong."""

    module: str
    percent: float  #: the estimate, less what chance explains; 0 where chance explains it all


class Whitening:
    """Scales logits [..., V] down in the directions in which these differences [positions, V] are large."""

    def __init__(self, differences: torch.Tensor) -> None:
        values, vectors = torch.linalg.eigh((differences @ differences.T).double())
        kept = values > values.amax() * 1e-9
        values, vectors = values[kept], vectors[:, kept]
        self._directions = (vectors / values.sqrt()).float().T @ differences
        self._factors = ((values / values.mean() + 1).rsqrt() - 1).float()

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the whitened logits."""
        change: torch.Tensor = (logits @ self._directions.T * self._factors) @ self._directions
        return logits + change


def worst_scale(reference: QuantizedReference, rows: Sequence[ScoredRow], differences: torch.Tensor) -> ScaleError:
    """Return the worst scale error; `differences` [positions, V] are those of all rows from the reference."""
    if len(rows) < 2 or not bool(differences.any()):
        return ScaleError("", 0.0)
    whiten = Whitening(differences)
    products, squares = map(torch.stack, zip(*_projections(reference, rows, whiten), strict=True))
    total = squares.sum(0).clamp(min=1e-30)
    estimates = products.sum(0) / total
    deviations = products.std(0) * math.sqrt(len(rows)) / total
    certain = estimates.abs() - student_quantile(SIGMAS, len(rows) - 1) * deviations
    worst = int(certain.argmax())
    return ScaleError(list(reference.factors)[worst], 100 * max(float(certain[worst]), 0.0))


def _projections(
    reference: QuantizedReference, rows: Sequence[ScoredRow], whiten: Whitening
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield r . g and g . g of all modules [modules], for each row."""
    generator = torch.Generator().manual_seed(0)
    factors = list(reference.factors.values())
    for row in rows:
        logits = reference.logits(row.prompt, row.continuation)
        white = whiten(logits)

        def project(vector: torch.Tensor, white: torch.Tensor = white) -> torch.Tensor:
            gradients = torch.autograd.grad((white * vector).sum(), factors, retain_graph=True, materialize_grads=True)
            return torch.cat(gradients).double()

        product = project(whiten(row.logits - logits.detach()))
        signs = [torch.randint(0, 2, logits.shape, generator=generator) * 2.0 - 1 for _ in range(PROBES)]
        yield product, torch.stack([project(vector).square() for vector in signs]).mean(0)


def student_quantile(sigmas: float, freedom: int) -> float:
    """Return Student's t that is as unlikely as `sigmas` standard deviations (Wallace's approximation, 1959)."""
    z = sigmas * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))
