"""The tensors of a program that outlive a call."""

import re
from collections.abc import Iterator

import pytest
import torch
from iree.compiler import ir

from workers.llm.export.global_tensors import GlobalTensor
from workers.llm.export.subgraphs import TensorMeta

PARTS = 2 * 126 * 8  #: of 405B's cache on eight devices


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with ir.Context():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fnuz])
def test_each_part_of_a_large_cache_begins_with_another_finite_number(dtype: torch.dtype) -> None:
    parts = [GlobalTensor("cache", 0, TensorMeta((16, 1, 128), dtype), number) for number in range(1, PARTS + 1)]
    patterns = [int(re.findall(r"dense<0x(\w+)> : tensor<16x1x", part.initial())[0], 16) for part in parts]
    assert len(set(patterns)) == PARTS
    wide = torch.tensor(patterns, dtype=torch.int32 if dtype.itemsize > 2 else torch.int16)
    assert bool(wide.view(dtype).float().isfinite().all())


def test_a_cache_of_bytes_is_held_in_words() -> None:
    part = GlobalTensor("cache", 0, TensorMeta((16, 1, 128), torch.float8_e4m3fn), 1)
    assert part.stored == TensorMeta((16, 1, 64), torch.int16)
    assert part.initial() == "dense<0x0001> : tensor<16x1x64xi16>"
