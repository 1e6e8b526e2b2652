"""How ranks hold the residual stream: all tokens on each, or a share of them."""

from hypothesis import given
from hypothesis import strategies as st

from workers.llm.sharding.residual import Residual, residual_of, share_sizes


@given(st.integers(1, 1 << 20), st.integers(1, 64))
def test_shares_are_of_all_tokens_and_none_is_empty(tokens: int, tp: int) -> None:
    if residual_of(tokens, tp) is Residual.SHARES:
        sizes = share_sizes(tokens, tp)
        assert sum(sizes) == tokens and len(sizes) == tp
        assert sizes[0] == max(sizes) and min(sizes) > 0
        assert set(sizes[:-1]) == {sizes[0]}


def test_a_prompt_is_shared_and_a_step_is_not() -> None:
    assert residual_of(4 * 2048, 8) is Residual.SHARES
    assert residual_of(64, 8) is Residual.COPIES
    assert residual_of(8192, 1) is Residual.COPIES
