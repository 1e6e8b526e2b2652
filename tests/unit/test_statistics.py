"""Ratios of timings, and where they lie."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.deciding.statistics import ratio_of_medians, ratio_of_pairs, spread

times = st.lists(st.floats(0.1, 1000), min_size=1, max_size=9)


@settings(max_examples=25)
@given(times, times)
def test_a_ratio_lies_in_its_interval_and_the_other_way_round_is_its_inverse(
    old: list[float], new: list[float]
) -> None:
    found, back = ratio_of_medians(old, new), ratio_of_medians(new, old)
    assert found is not None and back is not None
    assert found.low <= found.value * 1.000001 and found.value <= found.high * 1.000001
    assert found.value * back.value == pytest.approx(1)
    assert found.has_interval == (len(old) > 1 and len(new) > 1)


def test_the_same_samples_have_the_same_interval() -> None:
    assert ratio_of_medians([1, 2, 3, 4], [2, 3, 4, 5]) == ratio_of_medians([1, 2, 3, 4], [2, 3, 4, 5])


def test_what_is_twice_as_slow_is_told_from_noise() -> None:
    old, new = [10.0, 10.2, 9.9, 10.1, 10.0], [20.1, 20.0, 19.8, 20.3, 20.2]
    found = ratio_of_medians(old, new)
    assert found is not None
    assert 1.9 < found.low < 2.0 < found.high < 2.1


def test_noise_that_both_sides_of_a_pair_share_does_not_count() -> None:
    drifting = [(10.0 * drift, 10.5 * drift) for drift in (1.0, 1.5, 0.8, 2.0)]
    found = ratio_of_pairs(drifting)
    assert found is not None
    assert [found.low, found.high] == pytest.approx([1.05, 1.05])


def test_what_has_no_logarithm_has_no_ratio() -> None:
    assert ratio_of_medians([0.0, 1.0], [1.0, 1.0]) is None
    assert ratio_of_pairs([(1.0, 0.0)]) is None


def test_a_spread_takes_three_runs() -> None:
    assert spread([1.0, 1.1]) is None
    assert spread([1.0, 1.1, 1.21]) == pytest.approx(0.0953, rel=1e-3)
