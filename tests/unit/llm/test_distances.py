"""The distances between a program's logits and the reference's."""

import math

import pytest
import torch

from workers.llm.numerics.distances import compare_logits, concatenate, losses, perplexity, summarize


def test_equal_logits_have_no_distance() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    report = summarize(compare_logits(logits, logits))
    assert report["positions"] == 6
    assert report["finite"]
    assert (report["max_logit_diff"], report["mean_logit_diff"], report["argmax_agreement"]) == (0, 0, 1)
    assert report["kl_max"] == pytest.approx(0, abs=1e-12)


def test_distances_are_those_computed_by_hand() -> None:
    reference = torch.tensor([[0.0, math.log(3.0)], [1.0, 0.0]])  # probabilities 1/4, 3/4 in the first position
    measured = torch.tensor([[0.0, 0.0], [0.0, 2.0]])  # even; the other token
    distances = compare_logits(reference, measured)
    assert distances.kl[0].item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert distances.max_logit.tolist() == pytest.approx([math.log(3), 2])
    assert distances.mean_logit.tolist() == pytest.approx([math.log(3) / 2, 1.5])
    assert distances.same_choice[1].item() == 0


def test_the_whole_is_weighted_by_positions_not_by_parts() -> None:
    same, other = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    parts = [compare_logits(same.expand(1, 3, 2), same.expand(1, 3, 2)), compare_logits(same, other)]
    assert summarize(concatenate(parts))["argmax_agreement"] == pytest.approx(0.75)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_null_and_reported(broken: float) -> None:
    reference, measured = torch.zeros(1, 4), torch.tensor([[0.0, 0.0, broken, 0.0]])
    report = summarize(compare_logits(reference, measured))
    assert not report["finite"]
    assert report["max_logit_diff"] is None


def test_an_even_distribution_has_the_vocabulary_as_its_perplexity() -> None:
    assert perplexity(losses(torch.zeros(2, 5, 512), torch.zeros(2, 5, dtype=torch.int64))) == pytest.approx(512)


def test_a_perplexity_beyond_all_numbers_is_null() -> None:
    assert perplexity(torch.tensor([math.nan])) is None
    assert perplexity(torch.tensor([1e9])) is None
