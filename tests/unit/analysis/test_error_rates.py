"""Error rates of decisions, on few seeded draws of the published noise; `make bench` takes many."""

import pytest

from tests.decisions import PUBLISHED, Trial, fixed, gated, interleaved, rates, stored


@pytest.mark.parametrize(
    ("trial", "trials"), [(stored(16), 150), (interleaved, 40), (gated, 300)], ids=["stored", "interleaved", "gated"]
)
def test_what_is_the_same_is_left_alone_and_five_percent_are_found(trial: Trial, trials: int) -> None:
    noisiest = PUBLISHED[1]
    same, slow = (rates(trial, noisiest, slower, trials) for slower in (1.0, 1.05))
    assert same.different <= 0.02  # of so few; of thousands it is below 0.01
    assert slow.slower >= 0.95
    assert slow.runs <= 20


def test_the_rule_of_a_fixed_tolerance_misses_most_of_them() -> None:
    assert rates(fixed, PUBLISHED[1], 1.05, 300).slower < 0.5
