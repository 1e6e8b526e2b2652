"""Searching the first bad toolchain: with every list, every first bad one and everything that can't be judged."""

from collections.abc import Callable
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.reruns.bisection import BisectionResult, BisectionSearch, Mark

Judge = Callable[[int], Mark]


def walk(count: int, judge: Judge) -> tuple[BisectionResult, list[int]]:
    """The result, and whom it asked."""
    search, asked = BisectionSearch(tuple(str(index) for index in range(count))), []
    while (name := search.next_candidate) is not None:
        assert search.result is None
        asked.append(int(name))
        search = search.marked(name, judge(int(name)))
    assert search.result is not None
    return search.result, asked


def bad_from(first: int, skipped: frozenset[int] = frozenset()) -> Judge:
    def judge(index: int) -> Mark:
        if index in skipped:
            return Mark.SKIP
        return Mark.BAD if index >= first else Mark.GOOD

    return judge


@st.composite
def lists(draw: st.DrawFn) -> tuple[int, int, frozenset[int]]:
    """How many there are, which is the first bad one, and which of those between the ends can't be judged."""
    count = draw(st.integers(2, 60))
    skipped = draw(st.frozensets(st.integers(1, count - 2))) if count > 2 else frozenset()
    return count, draw(st.integers(1, count - 1)), skipped


@given(lists())
def test_the_first_bad_one_is_found_or_among_the_suspects(history: tuple[int, int, frozenset[int]]) -> None:
    count, first, skipped = history
    result, asked = walk(count, bad_from(first, skipped))
    suspects = [int(name) for name in result.suspects]
    assert result.problem == ""
    assert first in suspects
    assert len(set(asked)) == len(asked)
    assert set(suspects[:-1]) <= skipped
    assert result.last_good == str(suspects[0] - 1)
    assert result.first_bad == (str(first) if len(suspects) == 1 else None)


@given(lists())
def test_no_more_are_asked_than_halving_takes(history: tuple[int, int, frozenset[int]]) -> None:
    count, first, _ = history
    _, asked = walk(count, bad_from(first))
    assert asked[:2] == [0, count - 1][: len(asked)]
    assert len(asked) <= 2 + ceil(log2(count - 1) if count > 2 else 0)


@given(st.integers(2, 30), st.lists(st.sampled_from(Mark), min_size=30, max_size=30))
def test_whatever_it_is_told_it_comes_to_an_end(count: int, marks: list[Mark]) -> None:
    result, asked = walk(count, lambda index: marks[index])
    assert len(asked) <= count
    assert bool(result.problem) != bool(result.suspects)


@pytest.mark.parametrize(
    ("ends", "asked", "said"),
    [
        ((Mark.BAD, Mark.BAD), [0], "0 should be good, and is bad: name an older one"),
        ((Mark.SKIP, Mark.BAD), [0], "0 should be good, and can't be judged"),
        ((Mark.GOOD, Mark.GOOD), [0, 4], "4 should be bad, and is good: name a newer one"),
        ((Mark.GOOD, Mark.SKIP), [0, 4], "4 should be bad, and can't be judged"),
    ],
)
def test_an_end_that_is_not_what_it_was_said_to_be_is_told(
    ends: tuple[Mark, Mark], asked: list[int], said: str
) -> None:
    result, were_asked = walk(5, lambda index: ends[index == 4])
    assert (were_asked, result.suspects) == (asked, ())
    assert result.problem.startswith(said)
