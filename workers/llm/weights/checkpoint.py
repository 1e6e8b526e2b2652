"""Reading the safetensors files of a model: their headers, and the bytes of their tensors in chunks.

Headers are checked before anything relies on them. Bytes are read with plain reads, not through a memory map, whose
pages would count as this process's memory until they are those of the whole model.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.llm.command_line import BadInput
from workers.llm.models.json_files import parse_json_object
from workers.llm.models.model_source import INDEX_FILE, SINGLE_FILE, shard_names
from workers.llm.sharding.split_styles import Shape
from workers.llm.weights.stored_names import stored_as

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: further dtypes of the weights and scales of a quantized model
QUANTIZED = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8, "I32": torch.int32}
DTYPES = {**FLOATS, **QUANTIZED}
_LARGEST_HEADER = 100 << 20  #: bytes; the limit of the safetensors library


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file."""

    file: Path
    name: str
    dtype: str
    shape: Shape
    start: int  #: of its bytes in the file
    stop: int

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the tensor's matrix in chunks of at least one row, each with the number of its first row.

        All dimensions but the last are rows; the elements of a vector are rows.
        """
        dtype = DTYPES[self.dtype]
        row = self.shape[-1:] if len(self.shape) > 1 else ()
        count = math.prod(self.shape) // max(math.prod(row), 1)
        row_bytes = (self.stop - self.start) // max(count, 1)
        step = max(chunk_bytes // max(row_bytes, 1), 1)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start)
            for first in range(0, count, step):
                rows = min(step, count - first)
                raw = np.empty(rows * row_bytes, np.uint8)
                _fill(file, raw, self)
                yield first, torch.from_numpy(raw).view(dtype).reshape(rows, *row)


@dataclass(frozen=True)
class StackedTensor:
    """A parameter stored in several tensors, such as experts, whose matrices are concatenated."""

    parts: tuple[StoredTensor, ...]
    shape: Shape

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the whole matrix in chunks of rows, each with the number of its first row."""
        before = 0
        for part in self.parts:
            for first, rows in part.rows(chunk_bytes):
                yield before + first, rows
            before += math.prod(part.shape[:-1])


def _fill(file: Any, raw: np.ndarray[Any, Any], tensor: StoredTensor) -> None:
    view, filled = raw.data, 0
    while filled < len(view):
        count = file.readinto(view[filled:])
        if not count:
            raise BadInput(f"{tensor.file} ended while tensor {tensor.name} was read: fetch the file again")
        filled += count


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model folder. Raises BadInput when one is missing."""
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not index.is_file():
        raise BadInput(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: weights in safetensors are needed")
    names = shard_names(index)
    for name in names:
        if not (folder / name).is_file():
            raise BadInput(f"{index} names {name}, which is missing: fetch it")
    return [folder / name for name in names]


def read_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a model folder by name."""
    return {tensor.name: tensor for file in weight_files(folder) for tensor in read_header(file)}


def read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of one safetensors file. Raises BadInput when its length contradicts its header."""
    try:
        return _read_header(file, file.stat().st_size)
    except OSError as problem:
        raise BadInput(f"{file} cannot be read: {problem.strerror}") from None


def _read_header(file: Path, size: int) -> list[StoredTensor]:
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _LARGEST_HEADER + 1
        if length > min(_LARGEST_HEADER, size):
            raise BadInput(
                f"{file} is not a safetensors file, or is cut off: it has no complete header; fetch it again"
            )
        text = stream.read(length)
    try:
        entries = {name: entry for name, entry in parse_json_object(text).items() if name != "__metadata__"}
        tensors = [_stored(file, name, entry, 8 + length) for name, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise BadInput(
            f"the header of {file} is corrupt ({type(problem).__name__}: {problem}); fetch it again"
        ) from None
    _check_extent(file, size, tensors)
    return tensors


def _stored(file: Path, name: str, entry: Mapping[str, Any], base: int) -> StoredTensor:
    start, stop = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    tensor = StoredTensor(file, name, entry["dtype"], shape, base + start, base + stop)
    if entry["dtype"] in DTYPES:
        expected = int(np.prod(shape, dtype=np.int64)) * DTYPES[entry["dtype"]].itemsize
        if stop - start != expected or start < 0:
            raise ValueError(f"tensor {name} of shape {list(shape)} has {stop - start} bytes, not {expected}")
    return tensor


def _check_extent(file: Path, size: int, tensors: list[StoredTensor]) -> None:
    for tensor in tensors:
        if tensor.stop > size:
            raise BadInput(
                f"{file} is truncated: tensor {tensor.name} ends at byte {tensor.stop}, "
                f"the file at byte {size}; fetch it again"
            )


def match(
    stored: Mapping[str, StoredTensor], expected: Mapping[str, Shape], tied: Mapping[str, str], folder: Path
) -> dict[str, StoredTensor | StackedTensor]:
    """Return the stored tensor of each expected parameter.

    A parameter that is tied to another is read as that one, under either name. Raises BadInput for a tensor that is
    missing or has the wrong shape or dtype.
    """
    other_name = {owner: name for name, owner in tied.items()}
    matches: dict[str, StoredTensor | StackedTensor] = {}
    for name, shape in expected.items():
        if name in tied:
            continue
        names = [*stored_as(name, shape), *stored_as(other_name.get(name, ""), shape)]
        group = next((group for group in names if stored.keys() >= set(group)), None)
        if group is None:
            raise BadInput(f"{folder}: no safetensors file holds the tensor {name}, which the config calls for")
        parts = tuple(stored[part] for part in group)
        for part in parts:
            _check(part, shape if len(parts) == 1 else (math.prod(shape[:-1]) // len(parts), shape[-1]))
        matches[name] = parts[0] if len(parts) == 1 else StackedTensor(parts, shape)
    return matches


def _check(tensor: StoredTensor, shape: Shape) -> None:
    if tensor.shape != shape:
        shapes = f"{list(tensor.shape)}, the config calls for {list(shape)}"
        raise BadInput(f"{tensor.file}: tensor {tensor.name} has shape {shapes}")
    if tensor.dtype not in FLOATS:
        known = ", ".join(FLOATS)
        raise BadInput(f"{tensor.file}: tensor {tensor.name} is of type {tensor.dtype}; known are {known}")
