"""Writing each rank's archive of parameters, straight from the safetensors files.

Every stored tensor is read once, in chunks, converted, and cut for all ranks. Memory stays at a few chunks, however
large the model or its largest tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from workers.llm.sharding.plan import Sharding
from workers.llm.sharding.shard_regions import ShardRegion, shard_region_of
from workers.llm.sharding.split_styles import Shape
from workers.llm.weights.archive_layout import ArchiveLayout, lay_out_archive
from workers.llm.weights.irpa import ArchiveWriter, EntryView

#: small enough to stay in a core's cache until it is written: 8.2 GB to 8 ranks took half the time of 32 MiB chunks
CHUNK_BYTES = 2 << 20


def symbol_of(name: str, rank: int) -> str:
    """Return the name of a rank's part of a parameter or archive entry, in the program and in the archive."""
    return f"rank{rank}.{name}"


def file_name(rank: int) -> str:
    """Return the file name of a rank's archive."""
    return f"model.rank{rank}.irpa"


class RowSource(Protocol):
    """A tensor that is read in chunks of rows, such as `StoredTensor`."""

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield chunks of rows of its matrix, each with the number of its first row."""


@dataclass(frozen=True)
class RankShard:
    """A rank's part of a parameter."""

    rank: int
    region: ShardRegion


@dataclass(frozen=True)
class ShardedLayout:
    """Every rank's part of every parameter, and its place in the rank's archive."""

    dtypes: Mapping[str, torch.dtype]  #: of each parameter in the program
    shards: Mapping[str, list[RankShard]]
    archives: list[ArchiveLayout]  #: one for each rank


def lay_out(shapes: Mapping[str, Shape], sharding: Sharding, dtypes: Mapping[str, torch.dtype]) -> ShardedLayout:
    """Lay out parameters of these whole shapes and dtypes on all ranks; tied parameters must be given once."""
    shards = {
        name: [
            RankShard(rank, region)
            for rank in range(sharding.tp)
            if (region := shard_region_of(sharding, name, shape, rank)) is not None
        ]
        for name, shape in shapes.items()
    }
    sizes: list[dict[str, int]] = [{} for _ in range(sharding.tp)]
    for name, group in shards.items():
        for rank_shard in group:
            sizes[rank_shard.rank][name] = torch.Size(rank_shard.region.shape).numel() * dtypes[name].itemsize
    return ShardedLayout(dtypes, shards, [lay_out_archive(rank_sizes, dtypes) for rank_sizes in sizes])


def write_parameters(
    folder: Path,
    tensors: Mapping[str, RowSource],
    layout: ShardedLayout,
    report: Callable[[str], None],
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Path]:
    """Write `model.rankR.irpa` for every rank into `folder`; return the files.

    Beside the entries that a program takes, they list each parameter under its own name.
    """
    files = [folder / file_name(rank) for rank in range(len(layout.archives))]
    with ExitStack() as stack:
        archives = [
            stack.enter_context(_archive_writer(file, archive, rank))
            for rank, (file, archive) in enumerate(zip(files, layout.archives, strict=True))
        ]
        for count, (name, tensor) in enumerate(tensors.items(), 1):
            _write_tensor(archives, name, tensor.rows(chunk_bytes), layout)
            if count % 200 == 0 or count == len(tensors):
                report(f"parameters: {count} of {len(tensors)} tensors")
    return files


def _archive_writer(file: Path, archive: ArchiveLayout, rank: int) -> ArchiveWriter:
    sizes = {symbol_of(entry, rank): size for entry, size in archive.sizes.items()}
    views = {
        symbol_of(name, rank): EntryView(symbol_of(slot.entry, rank), slot.offset_bytes, slot.size_bytes)
        for name, slot in archive.slots.items()
        if slot.entry != name
    }
    return ArchiveWriter(file, sizes, views)


def _write_tensor(
    archives: list[ArchiveWriter], name: str, chunks: Iterable[tuple[int, torch.Tensor]], layout: ShardedLayout
) -> None:
    shards = [part for part in layout.shards[name] if not part.region.is_zero]  # a new file is all zeros
    for first, rows in chunks:
        converted = rows.to(layout.dtypes[name])
        for part in shards:
            for offset, data in _cut(part.region, first, converted):
                content = data.contiguous().view(torch.uint8).numpy().data.cast("B")
                archives[part.rank].write(symbol_of(name, part.rank), offset, content)


def _cut(region: ShardRegion, first: int, rows: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield what `region` has of `rows`, which begin at row `first` of the whole matrix, with its offset in bytes."""
    if region.dim == 1:
        ((start, stop),) = region.segments
        yield first * (stop - start) * rows.element_size(), rows[:, start:stop]
        return
    row_bytes = rows[0].numel() * rows.element_size()
    rows_before = 0  # of the region
    for start, stop in region.segments:
        begin, end = max(first, start), min(first + len(rows), stop)
        if begin < end:
            yield (rows_before + begin - start) * row_bytes, rows[begin - first : end - first]
        rows_before += stop - start
