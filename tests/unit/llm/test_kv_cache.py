"""The slots of tokens in a cache tensor, and the tensors' offsets in memory."""

import torch

from workers.llm.export.kv_cache import CacheLayout, block_table


def test_tokens_of_a_paged_row_lie_in_the_blocks_that_its_table_names() -> None:
    layout = CacheLayout(40, block_tokens=16)
    table = torch.tensor([[5, 0, 1], [4, 2, 3]])
    positions = torch.tensor([[15, 16, 39], [0, 31, 32]])
    assert layout.places(positions, 2, table).tolist() == [95, 0, 23, 64, 47, 48]


def test_the_plainest_table_lays_rows_as_a_cache_without_one_does() -> None:
    paged, plain = CacheLayout(48, block_tokens=16), CacheLayout(48)
    positions = torch.arange(48)[None]
    table = torch.from_numpy(block_table(3, paged.blocks))
    assert paged.places(positions, 3, table).equal(plain.places(positions, 3, None))


def test_no_last_layers_cache_begins_at_the_size_of_the_hidden_states() -> None:
    layout = CacheLayout(48)  # two layers: key, value, key, value, of 2 * 48 * 32 bytes each
    hidden = 2 * 12 * 64 * 4
    assert hidden == 2 * layout.slots(2) * 32
    moved = layout.clear_of({hidden}, batch=2, slot_bytes=32, layers=2)
    assert (moved.length, moved.capacity) == (48, 64)
    assert moved.clear_of({hidden}, batch=2, slot_bytes=32, layers=2) == moved
