"""Student's t and the normal distribution, for commands that people wait for.

scipy.special has the same functions, and takes as long to import as all else that a comparison does; tests hold these
against it.
"""

import math
from statistics import NormalDist

NEAR = 1e-14  #: relative: as near as floats come
MOST_STEPS = 10_000  #: of a fraction that converges within about the root of its larger parameter


def tail(t: float, freedom: float) -> float:
    """How often Student's t of so many degrees of freedom is `t` or more, for a `t` from 0 on."""
    square = t * t
    return _beta_below(freedom / (freedom + square), square / (freedom + square), freedom / 2, 0.5) / 2


def beyond(p: float, freedom: float) -> float:
    """The t that is reached as often as `p` says, which is less than a half.

    Newton's method, both in logarithms: there the tail is concave, so that from the second step on t only shrinks.
    """
    t = max(normal_beyond(p), 0.1)
    for _ in range(MOST_STEPS):
        found = tail(t, freedom)
        step = math.log(found / p) * found / (t * _density(t, freedom))
        t *= math.exp(step)
        if abs(step) <= NEAR:
            break
    return t


def normal_beyond(p: float) -> float:
    """The same of the normal distribution."""
    return -NormalDist().inv_cdf(p)


def _density(t: float, freedom: float) -> float:
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(log - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _beta_below(x: float, rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function; `rest` is 1 - x, which keeps its digits near 1."""
    if not rest or not x:
        return float(not rest)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_below(rest, x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(log) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Its continued fraction (DLMF 8.17.22) by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, MOST_STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = 1 + term / c, 1 / (1 + term * d)
            found *= c * d
        if abs(c * d - 1) <= NEAR:
            break
    return found
