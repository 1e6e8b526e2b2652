"""The slots of tokens in a cache tensor, and the tensors' offsets in memory."""

import torch

from workers.llm.export.kv_cache import CacheLayout


def test_tokens_of_a_paged_row_lie_in_the_blocks_that_its_table_names() -> None:
    layout = CacheLayout(40, rows=2, block_tokens=16)
    table = torch.tensor([[5, 6, 1], [4, 2, 3]])
    positions = torch.tensor([[15, 16, 39], [0, 31, 32]])
    assert layout.places(positions, 2, table).tolist() == [95, 96, 23, 64, 47, 48]


def test_what_is_no_token_lies_in_the_block_that_is_nobodys() -> None:
    layout = CacheLayout(40, rows=1, block_tokens=16)
    is_token = torch.tensor([[True, False, False]])
    assert layout.places(torch.tensor([[5, 16, 39]]), 1, torch.tensor([[5, 6, 1]]), is_token).tolist() == [85, 0, 7]


def test_rows_have_blocks_of_their_own_beside_the_one_that_is_nobodys() -> None:
    layout = CacheLayout(40, rows=3, block_tokens=16)
    table = layout.block_table(3, layout.capacity)
    assert sorted(table.flatten()) == list(range(1, layout.pool))
    assert layout.block_table(3, 32).tolist() == table[:, :2].tolist()
    assert CacheLayout(40, rows=3, block_tokens=16, pool_blocks=20).slots == 320


def test_no_last_layers_cache_begins_at_the_size_of_the_hidden_states() -> None:
    layout = CacheLayout(48, rows=2)  # two layers: key, value, key, value, of 2 * 48 * 32 bytes each
    hidden = 2 * 12 * 64 * 4
    assert hidden == 2 * layout.slots * 32
    moved = layout.clear_of({hidden}, slot_bytes=32, layers=2)
    assert (moved.length, moved.capacity) == (48, 64)
    assert moved.clear_of({hidden}, slot_bytes=32, layers=2) == moved
