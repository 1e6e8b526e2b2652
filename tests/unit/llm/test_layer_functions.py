"""Which layers share a function in a program."""

import pytest

from workers.llm.export.tracing import needs_first_apart


@pytest.mark.parametrize(
    ("kinds", "is_apart"),
    [("ss", False), ("sf", False), ("sff", False), ("ssff", False), ("sfs", True), ("ssf", True), ("sfsfs", True)],
)
def test_a_first_layer_whose_kind_is_more_frequent_than_another_has_its_own(kinds: str, is_apart: bool) -> None:
    assert needs_first_apart(list(kinds)) is is_apart
