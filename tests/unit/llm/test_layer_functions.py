"""Which layers share a function in a program for several devices."""

import pytest

from workers.llm.export.tracing import share_functions


@pytest.mark.parametrize(
    ("kinds", "groups"),
    [
        ("ssss", [0, 0, 0, 0]),
        ("sfsf", [0, 0, 0, 0]),
        ("sff", [0, 0, 0]),
        ("sfs", [0, 0, 1]),
        ("sssfsssf", [0, 0, 1, 0, 1, 2, 2, 0]),
    ],
)
def test_no_function_is_called_more_often_than_one_that_comes_later(kinds: str, groups: list[int]) -> None:
    assert share_functions(list(kinds)) == groups
