"""Writing each rank's parameters, straight from the safetensors files.

Every stored tensor is read once, in chunks, converted, and cut for all ranks: memory stays at a few chunks, whatever
the size of the model or of its largest tensor.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from workers.llm.irpa import ArchiveWriter, View
from workers.llm.packing import Packing, pack
from workers.llm.regions import Region, region_of
from workers.llm.sharding import Sharding
from workers.llm.split_styles import Shape

#: what is read stays in the cache of a core until it is written: 8.2 GB to 8 ranks took half the time of 32 MiB
CHUNK_BYTES = 2 << 20


def symbol_of(name: str, rank: int) -> str:
    """What a rank's part of a parameter, or of all of a layer's, is called in the program and in its archive."""
    return f"rank{rank}.{name}"


def file_name(rank: int) -> str:
    """The archive of a rank."""
    return f"model.rank{rank}.irpa"


class Rows(Protocol):
    """A tensor that comes in pieces, as `StoredTensor` does."""

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Rows of its matrix, with the number of the first."""


@dataclass(frozen=True)
class Part:
    """A rank's part of a stored tensor."""

    rank: int
    region: Region


@dataclass(frozen=True)
class Layout:
    """Every rank's part of every parameter, and where it lies in the rank's archive."""

    dtypes: Mapping[str, torch.dtype]  #: of each parameter in the program
    parts: Mapping[str, list[Part]]
    packings: list[Packing]  #: one for each rank


def lay_out(shapes: Mapping[str, Shape], sharding: Sharding, dtypes: Mapping[str, torch.dtype]) -> Layout:
    """Where parameters of these whole shapes and types go; tied ones are to be given once."""
    parts = {name: parts_of(sharding, name, shape) for name, shape in shapes.items()}
    sizes: list[dict[str, int]] = [{} for _ in range(sharding.tp)]
    for name, group in parts.items():
        for part in group:
            sizes[part.rank][name] = torch.Size(part.region.shape).numel() * dtypes[name].itemsize
    return Layout(dtypes, parts, [pack(each, dtypes) for each in sizes])


def parts_of(sharding: Sharding, name: str, shape: Shape) -> list[Part]:
    """All ranks' parts of the parameter `name`."""
    regions = ((rank, region_of(sharding, name, shape, rank)) for rank in range(sharding.tp))
    return [Part(rank, region) for rank, region in regions if region is not None]


def write_parameters(
    folder: Path,
    tensors: Mapping[str, Rows],
    layout: Layout,
    report: Callable[[str], None],
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Path]:
    """Write `model.rankR.irpa` for every rank into `folder`; returns the files.

    Beside the entries that a program takes, each parameter can be found in them under its own name.
    """
    files = [folder / file_name(rank) for rank in range(len(layout.packings))]
    with ExitStack() as stack:
        archives = [
            stack.enter_context(_archive(file, packing, rank))
            for rank, (file, packing) in enumerate(zip(files, layout.packings, strict=True))
        ]
        for count, (name, tensor) in enumerate(tensors.items(), 1):
            _write_tensor(archives, name, tensor.rows(chunk_bytes), layout)
            if count % 200 == 0 or count == len(tensors):
                report(f"parameters: {count} of {len(tensors)} tensors")
    return files


def _archive(file: Path, packing: Packing, rank: int) -> ArchiveWriter:
    sizes = {symbol_of(entry, rank): size for entry, size in packing.sizes.items()}
    views = {
        symbol_of(name, rank): View(symbol_of(slot.entry, rank), slot.offset_bytes, slot.size_bytes)
        for name, slot in packing.slots.items()
        if slot.entry != name
    }
    return ArchiveWriter(file, sizes, views)


def _write_tensor(
    archives: list[ArchiveWriter], name: str, chunks: Iterable[tuple[int, torch.Tensor]], layout: Layout
) -> None:
    parts = [part for part in layout.parts[name] if not part.region.is_zero]  # a new file is all zeros
    for first, rows in chunks:
        converted = rows.to(layout.dtypes[name])
        for part in parts:
            for offset, data in _cut(part.region, first, converted):
                archives[part.rank].write(symbol_of(name, part.rank), offset, _bytes(data))


def _cut(region: Region, first: int, rows: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """What of `rows` of the whole's matrix, which begin at row `first`, is in `region`, and its offsets in bytes."""
    if region.dim == 1:
        ((start, stop),) = region.segments
        yield first * (stop - start) * rows.element_size(), rows[:, start:stop]
        return
    row_bytes = rows[0].numel() * rows.element_size()
    held = 0
    for start, stop in region.segments:
        begin, end = max(first, start), min(first + len(rows), stop)
        if begin < end:
            yield (held + begin - start) * row_bytes, rows[begin - first : end - first]
        held += stop - start


def _bytes(data: torch.Tensor) -> memoryview:
    return data.contiguous().view(torch.uint8).numpy().data.cast("B")
