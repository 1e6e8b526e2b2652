"""Error rates of decisions, and the runs that they take.

`pytest -m benchmark -s tests/performance/test_decisions.py`.
"""

import pytest

from tests.decisions import PUBLISHED, Trial, fixed, fixed_once, gated, interleaved, rates, stored

TRIALS = 2000
RULES: dict[str, Trial] = {
    "compare, 8 stored runs a side": stored(8),
    "compare, 16 stored runs a side": stored(16),
    "compare, 24 stored runs a side": stored(24),
    "compare --run": interleaved,
    "gate": gated,
    "peers: mean of 3 against a mean of 3": fixed,
    "peers: mean of 3 against the truth": fixed_once,
}


@pytest.mark.benchmark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RULES)
def test_false_alarms_and_slowdowns_that_are_found(name: str) -> None:
    for published in PUBLISHED:
        same = rates(RULES[name], published, 1.0, TRIALS)
        slow = rates(RULES[name], published, 1.05, TRIALS)
        print(
            f"\n{name}; {published.name} (sigma {published.sigma:.1%}): A/A called different {same.different:.2%}, "
            f"{same.runs:.1f} runs a side; 5% slower found {slow.slower:.1%}, {slow.runs:.1f} runs a side",
            end="",
        )
