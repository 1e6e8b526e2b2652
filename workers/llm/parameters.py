"""Writing each rank's parameters, straight from the safetensors files.

Every stored tensor is read once, in chunks, converted, and cut for all ranks: memory stays at a few chunks, whatever
the size of the model or of its largest tensor.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from workers.llm.checkpoint import StoredTensor
from workers.llm.irpa import ArchiveWriter
from workers.llm.sharding import Region, Shape, Sharding, region_of

CHUNK_BYTES = 32 << 20


def symbol_of(name: str, rank: int) -> str:
    """What a rank's part of a parameter is called in the program and in its archive."""
    return f"rank{rank}.{name}"


def file_name(rank: int) -> str:
    """The archive of a rank."""
    return f"model.rank{rank}.irpa"


@dataclass(frozen=True)
class Part:
    """A rank's part of a stored tensor."""

    symbol: str
    rank: int
    region: Region


def parts_of(sharding: Sharding, name: str, shape: Shape, kv_heads: int) -> list[Part]:
    """All ranks' parts of the parameter `name`."""
    regions = ((rank, region_of(sharding, name, shape, rank, kv_heads)) for rank in range(sharding.tp))
    return [Part(symbol_of(name, rank), rank, region) for rank, region in regions if region is not None]


def write_parameters(
    folder: Path,
    tensors: Mapping[str, StoredTensor],
    sharding: Sharding,
    kv_heads: int,
    dtype: torch.dtype,
    report: Callable[[str], None],
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Path]:
    """Write `model.rankR.irpa` for every rank into `folder`; returns the files."""
    parts = {name: parts_of(sharding, name, tensor.shape, kv_heads) for name, tensor in tensors.items()}
    sizes: list[dict[str, int]] = [{} for _ in range(sharding.tp)]
    for part in (part for group in parts.values() for part in group):
        sizes[part.rank][part.symbol] = torch.Size(part.region.shape).numel() * dtype.itemsize
    files = [folder / file_name(rank) for rank in range(sharding.tp)]
    with ExitStack() as stack:
        archives = [stack.enter_context(ArchiveWriter(*each)) for each in zip(files, sizes, strict=True)]
        for count, (name, tensor) in enumerate(tensors.items(), 1):
            _write_tensor(archives, tensor.rows(chunk_bytes), parts[name], dtype)
            if count % 200 == 0 or count == len(tensors):
                report(f"parameters: {count} of {len(tensors)} tensors")
    return files


def _write_tensor(
    archives: list[ArchiveWriter], chunks: Iterable[tuple[int, torch.Tensor]], parts: Iterable[Part], dtype: torch.dtype
) -> None:
    parts = [part for part in parts if not part.region.is_zero]  # a new file is all zeros
    for first, rows in chunks:
        converted = rows.to(dtype)
        for part in parts:
            offset, data = _cut(part.region, first, converted)
            if data.numel():
                archives[part.rank].write(part.symbol, offset, _bytes(data))


def _cut(region: Region, first: int, rows: torch.Tensor) -> tuple[int, torch.Tensor]:
    """What of `rows`, which begin at row `first` of the whole, is in `region`, and its offset there in bytes."""
    row_bytes = torch.Size(region.shape[1:]).numel() * rows.element_size()
    if region.dim == 1:
        return first * row_bytes, rows[:, region.start : region.stop]
    start = max(first, region.start)
    stop = min(first + len(rows), region.stop)
    return (start - region.start) * row_bytes, rows[start - first : max(stop - first, start - first)]


def _bytes(data: torch.Tensor) -> memoryview:
    return data.contiguous().view(torch.uint8).numpy().data.cast("B")
