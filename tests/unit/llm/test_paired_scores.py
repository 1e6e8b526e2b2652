"""Scores of two models on the same items: the standard error of each, and of their difference."""

import math
import random
from statistics import fmean, stdev
from typing import Any

import pytest

from jobs.stages.evaluate import gate
from workers.llm.evaluation.paired_scores import compare


def described(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "name": "task", "changed_items": 0}


def test_a_mean_s_standard_error_is_the_usual_one_and_that_of_pairs_is_smaller() -> None:
    chance = random.Random(0)
    reference = [float(chance.random() < 0.6) for _ in range(150)]
    values = [1 - right if chance.random() < 0.05 else right for right in reference]
    report = compare(fmean, reference, values, is_lower_better=False)
    assert report["value_stderr"] == pytest.approx(stdev(values) / math.sqrt(150))
    differences = [old - new for old, new in zip(reference, values, strict=True)]
    assert report["drop"] == pytest.approx(fmean(differences))
    assert report["drop_stderr"] == pytest.approx(stdev(differences) / math.sqrt(150))
    assert report["drop_stderr"] < 0.6 * report["value_stderr"]


def test_a_score_that_is_no_mean_has_a_standard_error_too() -> None:
    """A perplexity of words: of log likelihoods with numbers of words, where lower is better."""

    def perplexity(items: list[tuple[float, int]]) -> float:
        return math.exp(-sum(logprob for logprob, _ in items) / sum(words for _, words in items))

    chance = random.Random(1)

    def texts(count: int) -> list[tuple[float, int]]:
        return [(-words * chance.gauss(2.0, 0.3), words) for words in (chance.randint(5, 50) for _ in range(count))]

    reference = texts(1000)  # more items than groups that are left out
    report = compare(
        perplexity, reference, [(1.01 * logprob, words) for logprob, words in reference], is_lower_better=True
    )
    assert report["drop"] > 0
    assert report["drop_stderr"] < report["value_stderr"] / 10
    spread = stdev(perplexity(texts(1000)) for _ in range(100))
    assert report["value_stderr"] == pytest.approx(spread, rel=0.3)


def test_a_program_that_differs_by_chance_alone_rarely_fails() -> None:
    """One in a hundred at most, however few items change; and one that loses a tenth of its answers fails."""
    chance, failures, trials = random.Random(2), 0, 300
    for _ in range(trials):
        reference = [float(chance.random() < 0.5) for _ in range(100)]
        flips = chance.choice((0.02, 0.1, 0.3))
        values = [1 - right if chance.random() < flips else right for right in reference]
        # what flips at random moves a score towards one half, so each side is it once
        sides = [reference, values] if chance.random() < 0.5 else [values, reference]
        failures += gate([described(compare(fmean, *sides, is_lower_better=False))], 0.0) is not None
    assert failures <= 0.02 * trials
    right = [1.0] * 60 + [0.0] * 40
    worse = [0.0] * 10 + right[10:]
    assert gate([described(compare(fmean, right, worse, is_lower_better=False))], 1.0) is not None
