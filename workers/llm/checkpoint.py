"""The safetensors files of a model: what is in them, and their bytes, read in pieces.

Headers are checked here, before anything is built on them. Bytes are read with plain reads, not through a memory map:
mapped pages would count as this process's memory until the whole model is in it.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workers.llm.model_source import INDEX_FILE, SINGLE_FILE
from workers.llm.program import BadInput
from workers.llm.split_styles import Shape
from workers.llm.stored_names import stored_as

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: what weights and scales of a quantized model are held in, beside these
QUANTIZED = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8, "I32": torch.int32}
DTYPES = {**FLOATS, **QUANTIZED}
_LARGEST_HEADER = 100 << 20  #: bytes; what the safetensors library allows
_BLOB_NAME_LENGTH = 64  #: Hugging Face's cache names large files after their sha256


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies."""

    file: Path
    name: str
    dtype: str
    shape: Shape
    start: int  #: of its bytes in the file
    stop: int

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensor's matrix in chunks of rows, each with the number of its first row; one row at least.

        All dimensions but the last are rows; a vector's elements are.
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
    """A parameter that is stored in several tensors, as experts are: their matrices follow one another."""

    parts: tuple[StoredTensor, ...]
    shape: Shape

    def rows(self, chunk_bytes: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The whole's matrix in chunks of rows, each with the number of its first row."""
        before = 0
        for part in self.parts:
            for first, rows in part.rows(chunk_bytes):
                yield before + first, rows
            before += math.prod(part.shape[:-1])


def _fill(file: Any, raw: np.ndarray[Any, Any], tensor: StoredTensor) -> None:
    view, done = raw.data, 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            raise BadInput(f"{tensor.file} ended while tensor {tensor.name} was read: fetch the file again")
        done += got


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that a model folder names; each must be there."""
    index = folder / INDEX_FILE
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not index.is_file():
        raise BadInput(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: weights in safetensors are needed")
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise BadInput(f"{index} is not a valid index ({problem}): fetch the file again") from None
    for name in names:
        if Path(name).name != name:
            raise BadInput(f"{index} names {name!r}, which is not a file beside it")
        if not (folder / name).is_file():
            raise BadInput(f"{index} names {name}, which is missing: fetch it")
    return [folder / name for name in names]


def read_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model folder, by name."""
    return {tensor.name: tensor for file in weight_files(folder) for tensor in read_header(file)}


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, whose length must be what its header says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _LARGEST_HEADER + 1
        if length > min(_LARGEST_HEADER, size):
            raise BadInput(
                f"{file} is not a safetensors file, or is cut off: it has no complete header; fetch it again"
            )
        text = stream.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        tensors = [_stored(file, name, entry, 8 + length) for name, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
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
    """The stored tensor of each expected parameter; one that is missing, misshaped or of a strange type is refused.

    A parameter that is tied to another is read as that one; either name will do.
    """
    other_name = {owner: name for name, owner in tied.items()}
    found: dict[str, StoredTensor | StackedTensor] = {}
    for name, shape in expected.items():
        if name in tied:
            continue
        names = [*stored_as(name, shape), *stored_as(other_name.get(name, ""), shape)]
        parts = next((tuple(stored[each] for each in group) for group in names if stored.keys() >= set(group)), None)
        if parts is None:
            raise BadInput(f"{folder}: no safetensors file holds the tensor {name}, which the config calls for")
        for part in parts:
            _check(part, shape if len(parts) == 1 else _part_shape(shape, len(parts)))
        found[name] = parts[0] if len(parts) == 1 else StackedTensor(parts, shape)
    return found


def _part_shape(whole: Shape, parts: int) -> Shape:
    return math.prod(whole[:-1]) // parts, whole[-1]


def _check(tensor: StoredTensor, shape: Shape) -> None:
    if tensor.shape != shape:
        shapes = f"{list(tensor.shape)}, the config calls for {list(shape)}"
        raise BadInput(f"{tensor.file}: tensor {tensor.name} has shape {shapes}")
    if tensor.dtype not in FLOATS:
        known = ", ".join(FLOATS)
        raise BadInput(f"{tensor.file}: tensor {tensor.name} is of type {tensor.dtype}; known are {known}")


def content_digest(files: Iterable[Path]) -> str:
    """Names and contents of `files` in one sha256. A file of Hugging Face's cache is known by its blob's name."""
    files = sorted(files)
    with ThreadPoolExecutor() as threads:
        digests = list(threads.map(_file_digest, files))
    lines = [f"{file.name} {digest}\n" for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_digest(file: Path) -> str:
    blob = file.resolve().name
    if file.is_symlink() and len(blob) == _BLOB_NAME_LENGTH and set(blob) <= set("0123456789abcdef"):
        return blob
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
