"""Writing IREE's parameter archives (IRPA, format 0.0) without holding their contents in memory.

`iree.runtime.ParameterIndex` can only write tensors that are in memory. The layout is that of
iree/schemas/parameter_archive.h: a header, a table of entries, the entries' names, then their aligned bytes.
A file appears under its name only when it is complete.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from workers.llm.command_line import os_errors_naming

_MAGIC = b"IRPA"
_HEADER = struct.Struct("<4sHHQQQQQQQQQQ")
_DATA_ENTRY = struct.Struct("<QIQQQQQQQQ")
_DATA, _ALIGNMENT = 2, 64
_PAGE = 4096


@dataclass(frozen=True)
class EntryView:
    """A part of an entry under a name of its own."""

    entry: str
    offset_bytes: int
    size_bytes: int


class ArchiveWriter:
    """Writes an archive of entries with known sizes, whose bytes arrive in any order."""

    def __init__(self, path: Path, sizes: Mapping[str, int], views: Mapping[str, EntryView] | None = None) -> None:
        self.path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._offsets, self._length = _place(sizes)
        self._sizes = dict(sizes)
        for name, view in (views or {}).items():
            assert view.offset_bytes + view.size_bytes <= self._sizes[view.entry], name
            self._offsets[name] = self._offsets[view.entry] + view.offset_bytes
            self._sizes[name] = view.size_bytes
        self._file: IO[bytes]

    def __enter__(self) -> "ArchiveWriter":
        self._file = self._partial.open("wb")
        try:
            head, self._base = _head(self._sizes, self._offsets, self._length)
            with os_errors_naming(self.path):  # a full disk fails now, not hours later
                os.posix_fallocate(self._file.fileno(), 0, _aligned(self._base + self._length, _PAGE))
            self._file.write(head)
        except BaseException:
            self._abandon()
            raise
        return self

    def write(self, name: str, offset: int, data: bytes | memoryview) -> None:
        """Put `data` into the entry or view `name`, `offset` bytes from its start."""
        assert offset >= 0 and offset + len(data) <= self._sizes[name], name
        with os_errors_naming(self.path):
            self._file.seek(self._base + self._offsets[name] + offset)
            self._file.write(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self._file.close()
        except BaseException:
            self._abandon()
            raise
        self._partial.replace(self.path)

    def _abandon(self) -> None:
        self._partial.unlink(missing_ok=True)
        self._file.close()


def _place(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end = _aligned(end + size, _ALIGNMENT)
    return offsets, end


def _head(sizes: Mapping[str, int], offsets: Mapping[str, int], storage_length: int) -> tuple[bytes, int]:
    """Return all that precedes the entries' bytes, and the offset of these."""
    names = [name.encode() for name in sizes]
    table_at = _aligned(_HEADER.size, 16)
    entry_length = _aligned(_DATA_ENTRY.size, 16)
    table_length = entry_length * (len(names) - 1) + _DATA_ENTRY.size if names else 0
    text_at = table_at + table_length
    text = b"".join(names)
    storage_at = _aligned(text_at + len(text), _ALIGNMENT)
    header = _HEADER.pack(
        _MAGIC,
        0,
        0,
        _HEADER.size,
        0,
        0,
        len(names),
        table_at,
        table_length,
        text_at,
        len(text),
        storage_at,
        storage_length,
    )
    entries, at = [], 0
    for name, key in zip(names, sizes, strict=True):
        fields = (_DATA_ENTRY.size, _DATA, 0, at, len(name), 0, 0, _ALIGNMENT, offsets[key], sizes[key])
        entries.append(_DATA_ENTRY.pack(*fields).ljust(entry_length, b"\0"))
        at += len(name)
    table = b"".join(entries)[:table_length]
    return (header.ljust(table_at, b"\0") + table + text).ljust(storage_at, b"\0"), storage_at


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
