"""Student's t and the normal distribution against scipy's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri, stdtr, stdtrit

from orchestrator.deciding.student import beyond, normal_beyond, tail

freedoms = st.floats(0.3, 1e5)


@given(st.floats(1e-3, 100), freedoms)
def test_a_tail_is_that_of_scipy(t: float, freedom: float) -> None:
    assert tail(t, freedom) == pytest.approx(float(stdtr(freedom, -t)), rel=1e-8, abs=1e-300)


@given(st.floats(1e-9, 0.49), freedoms)
def test_a_quantile_is_that_of_scipy(p: float, freedom: float) -> None:
    assert beyond(p, freedom) == pytest.approx(float(-stdtrit(freedom, p)), rel=1e-8)
    assert normal_beyond(p) == pytest.approx(float(-ndtri(p)), rel=1e-12)


def test_one_degree_of_freedom_has_a_formula() -> None:
    for t in (0.0, 1e-9, 0.5, 1.0, 40.0):
        assert tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-12)
