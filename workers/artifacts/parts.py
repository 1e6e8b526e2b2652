"""The layout of a large file on a remote file system: parts, each named by its own sha256, and a manifest of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

FORMAT = 1


@dataclass(frozen=True)
class Limits:
    """The sizes above which files are split and downloads are divided into requests."""

    single_bytes: int = 1 << 30  #: the largest file that is one object
    part_bytes: int = 64 << 20
    block_bytes: int = 16 << 20  #: of a download; an interrupted one resumes at a block's beginning


LIMITS = Limits()


@dataclass(frozen=True)
class Manifest:
    """The parts of one file, in their order. All but the last are equally long."""

    size_bytes: int
    part_bytes: int
    parts: tuple[str, ...]

    def to_json(self) -> bytes:
        """Return what is stored."""
        return json.dumps({"format": FORMAT, **vars(self)}).encode()

    def length(self, number: int) -> int:
        """Return the length of a part."""
        return min(self.part_bytes, self.size_bytes - number * self.part_bytes)


def parse_manifest(text: bytes) -> Manifest:
    """Parse a stored manifest; raises ValueError for anything else."""
    try:
        fields = json.loads(text)
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']} is not known here")
        manifest = Manifest(int(fields["size_bytes"]), int(fields["part_bytes"]), tuple(fields["parts"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a manifest") from error
    if manifest.part_bytes <= 0 or len(manifest.parts) != len(list(ranges(manifest.size_bytes, manifest.part_bytes))):
        raise ValueError("its parts do not add up")
    return manifest


def ranges(size_bytes: int, step_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each range when a file is split into steps."""
    return pairwise([*range(0, size_bytes, step_bytes), size_bytes])


@dataclass(frozen=True)
class ByteRange:
    """The range of an object that one request reads."""

    path: str
    start: int
    end: int


def byte_ranges(objects: Iterator[tuple[str, int]], start: int, block_bytes: int) -> Iterator[ByteRange]:
    """Yield the requests that read a file from an offset on; `objects` are its paths and lengths, in order."""
    for path, length in objects:
        for low, high in ranges(length, block_bytes):
            if start < high:
                yield ByteRange(path, max(low, start), high)
        start = max(start - length, 0)
