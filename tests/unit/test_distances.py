"""How far a program is from its reference, in numbers."""

import math

import pytest
import torch

from workers.llm.distances import distances, joined, losses, perplexity, summary


def test_equal_logits_have_no_distance() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    found = summary(distances(logits, logits))
    assert found["positions"] == 6
    assert found["finite"]
    assert (found["max_logit_diff"], found["mean_logit_diff"], found["argmax_agreement"]) == (0, 0, 1)
    assert found["kl_max"] == pytest.approx(0, abs=1e-12)


def test_distances_are_those_computed_by_hand() -> None:
    reference = torch.tensor([[0.0, math.log(3.0)], [1.0, 0.0]])  # probabilities 1/4, 3/4 in the first position
    measured = torch.tensor([[0.0, 0.0], [0.0, 2.0]])  # even; the other token
    found = distances(reference, measured)
    assert found.kl[0].item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert found.max_logit.tolist() == pytest.approx([math.log(3), 2])
    assert found.mean_logit.tolist() == pytest.approx([math.log(3) / 2, 1.5])
    assert found.same_choice[1].item() == 0


def test_the_whole_is_weighted_by_positions_not_by_parts() -> None:
    same, other = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    parts = [distances(same.expand(1, 3, 2), same.expand(1, 3, 2)), distances(same, other)]
    assert summary(joined(parts))["argmax_agreement"] == pytest.approx(0.75)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_null_and_said(broken: float) -> None:
    reference, measured = torch.zeros(1, 4), torch.tensor([[0.0, 0.0, broken, 0.0]])
    found = summary(distances(reference, measured))
    assert not found["finite"]
    assert found["max_logit_diff"] is None


def test_an_even_distribution_has_the_vocabulary_as_its_perplexity() -> None:
    assert perplexity(losses(torch.zeros(2, 5, 512), torch.zeros(2, 5, dtype=torch.int64))) == pytest.approx(512)


def test_a_perplexity_beyond_all_numbers_is_null() -> None:
    assert perplexity(torch.tensor([math.nan])) is None
    assert perplexity(torch.tensor([1e9])) is None
