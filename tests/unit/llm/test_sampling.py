"""Sampling without sorting: the tokens that are kept, and how often each is drawn, against torch's sorted ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.llm.export.heads import argmax, sum_row
from workers.llm.export.sampling import gumbel_noise, sample, smallest_kept

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MASS_TOLERANCE = 1e-5  #: of the probability that top_p keeps: sums in f32


def random_logits(seed: int, dtype: torch.dtype, rows: int = 3, columns: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, columns, generator=generator) * torch.tensor([[0.01], [3.0], [40.0]])
    logits[:, 7] = logits[:, 9]  # of equal ones all are kept
    logits[2, 30:60] = float("-inf")
    return logits.to(dtype)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**20), dtype=st.sampled_from(DTYPES), k=st.integers(1, 300))
def test_the_k_largest_are_kept_and_those_that_equal_the_last(seed: int, dtype: torch.dtype, k: int) -> None:
    logits = random_logits(seed, dtype)
    first = smallest_kept(logits, torch.ones(logits.shape), torch.full((3,), float(k)))
    assert first.equal(logits.float().topk(k).values[:, -1].to(dtype))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**20), dtype=st.sampled_from(DTYPES), p=st.floats(1e-3, 0.999))
def test_the_fewest_are_kept_that_have_the_probability(seed: int, dtype: torch.dtype, p: float) -> None:
    logits = random_logits(seed, dtype)
    weights = logits.float().softmax(-1)
    kept = logits >= smallest_kept(logits, weights, p * sum_row(weights))[:, None]
    exact = logits.double().softmax(-1)
    for row in range(3):
        last = logits[row][kept[row]].min()
        assert float(exact[row][kept[row]].sum()) >= p - MASS_TOLERANCE
        assert float(exact[row][logits[row] > last].sum()) < p + MASS_TOLERANCE


def filtered(logits: torch.Tensor, temperature: float, k: int, p: float) -> torch.Tensor:
    """Probabilities of what is drawn, by sorting, as serving engines compute them."""
    probabilities = (logits.double() / temperature).softmax(-1)
    order = probabilities.argsort(descending=True)
    kept = torch.zeros_like(probabilities)
    best = order[: k or len(order)]
    before = (probabilities[best] / probabilities[best].sum()).cumsum(0) - probabilities[best] / probabilities[
        best
    ].sum()
    best = best[before < p]
    kept[best] = probabilities[best]
    return kept / kept.sum()


@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.7), (0.8, 12, 0.6)]
)
def test_tokens_are_drawn_as_often_as_they_are_probable(temperature: float, k: int, p: float) -> None:
    draws, logits = 20_000, torch.randn(40, generator=torch.Generator().manual_seed(1)) * 2
    chosen = sample(
        logits.expand(draws, 1, 40),
        torch.full((draws,), temperature),
        torch.full((draws,), k),
        torch.full((draws,), p),
        torch.arange(draws) * 0x1_0000_0001,
    )
    probabilities = filtered(logits, temperature, k, p)
    counts = chosen.bincount(minlength=40)
    assert not counts[probabilities == 0].any()
    likely = probabilities * draws > 5
    expected = probabilities[likely] * draws
    chi_square = float(((counts[likely] - expected) ** 2 / expected).sum())
    freedom = int(likely.sum()) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_noise_is_gumbels_and_neither_rows_nor_columns_depend_on_each_other() -> None:
    noise = gumbel_noise(torch.tensor([*range(100), *(seed << 32 for seed in range(1, 101))]), 3000).double()
    assert noise.isfinite().all()
    uniform = (-(-noise).exp()).exp()
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.002)
    assert float(uniform.flatten().sort().values.sub(torch.linspace(0, 1, uniform.numel())).abs().max()) < 0.004
    for other in (uniform.roll(1, 0), uniform.roll(1, 1), uniform.roll(100, 0)):
        assert abs(float(torch.corrcoef(torch.stack([uniform.flatten(), other.flatten()]))[0, 1])) < 0.005


def test_what_is_no_parameter_or_no_logit_gives_no_token() -> None:
    logits = torch.randn(9, 1, 50)
    logits[7, 0, 3], logits[8, 0, 3] = float("nan"), float("inf")
    temperature = torch.tensor([1.0, -1.0, float("nan"), float("inf"), 1.0, 1.0, 1.0, 1.0, 1.0])
    top_k = torch.tensor([0, 0, 0, 0, -1, 0, 0, 0, 0])
    top_p = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, float("nan"), 1.0, 1.0])
    chosen = sample(logits, temperature, top_k, top_p, torch.zeros(9, dtype=torch.int64))
    assert chosen[0] >= 0
    assert (chosen[1:] == -1).all()


def test_the_first_of_the_largest_is_chosen_whatever_the_size() -> None:
    for columns in (1, 255, 256, 1000):
        values = torch.randint(0, 4, (8, columns)).float()
        assert argmax(values).equal(values.argmax(-1))
