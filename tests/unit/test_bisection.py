"""Searching the first bad toolchain: with every list, every first bad one and everything that can't be judged."""

from collections.abc import Callable
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.repeating.bisection import Answer, Search, Verdict

Judge = Callable[[int], Verdict]


def walk(count: int, judge: Judge) -> tuple[Answer, list[int]]:
    """The answer, and whom it asked."""
    search, asked = Search(tuple(str(index) for index in range(count))), []
    while (name := search.next) is not None:
        assert search.answer is None
        asked.append(int(name))
        search = search.told(name, judge(int(name)))
    assert search.answer is not None
    return search.answer, asked


def bad_from(first: int, skipped: frozenset[int] = frozenset()) -> Judge:
    def judge(index: int) -> Verdict:
        if index in skipped:
            return Verdict.SKIP
        return Verdict.BAD if index >= first else Verdict.GOOD

    return judge


@st.composite
def lists(draw: st.DrawFn) -> tuple[int, int, frozenset[int]]:
    """How many there are, which is the first bad one, and which of those between the ends can't be judged."""
    count = draw(st.integers(2, 60))
    skipped = draw(st.frozensets(st.integers(1, count - 2))) if count > 2 else frozenset()
    return count, draw(st.integers(1, count - 1)), skipped


@given(lists())
def test_the_first_bad_one_is_found_or_among_the_suspects(found: tuple[int, int, frozenset[int]]) -> None:
    count, first, skipped = found
    answer, asked = walk(count, bad_from(first, skipped))
    suspects = [int(name) for name in answer.suspects]
    assert answer.problem == ""
    assert first in suspects
    assert len(set(asked)) == len(asked)
    assert set(suspects[:-1]) <= skipped
    assert answer.last_good == str(suspects[0] - 1)
    assert answer.first_bad == (str(first) if len(suspects) == 1 else None)


@given(lists())
def test_no_more_are_asked_than_halving_takes(found: tuple[int, int, frozenset[int]]) -> None:
    count, first, _ = found
    _, asked = walk(count, bad_from(first))
    assert asked[:2] == [0, count - 1][: len(asked)]
    assert len(asked) <= 2 + ceil(log2(count - 1) if count > 2 else 0)


@given(st.integers(2, 30), st.lists(st.sampled_from(Verdict), min_size=30, max_size=30))
def test_whatever_it_is_told_it_comes_to_an_end(count: int, verdicts: list[Verdict]) -> None:
    answer, asked = walk(count, lambda index: verdicts[index])
    assert len(asked) <= count
    assert bool(answer.problem) != bool(answer.suspects)


@pytest.mark.parametrize(
    ("ends", "asked", "said"),
    [
        ((Verdict.BAD, Verdict.BAD), [0], "0 was said to be good, and is bad: name an older one"),
        ((Verdict.SKIP, Verdict.BAD), [0], "0 was said to be good, and can't be judged"),
        ((Verdict.GOOD, Verdict.GOOD), [0, 4], "4 was said to be bad, and is good: name a newer one"),
        ((Verdict.GOOD, Verdict.SKIP), [0, 4], "4 was said to be bad, and can't be judged"),
    ],
)
def test_an_end_that_is_not_what_it_was_said_to_be_is_told(
    ends: tuple[Verdict, Verdict], asked: list[int], said: str
) -> None:
    answer, were_asked = walk(5, lambda index: ends[index == 4])
    assert (were_asked, answer.suspects) == (asked, ())
    assert answer.problem.startswith(said)
