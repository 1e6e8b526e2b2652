"""How a large file lies on a remote file system: in parts, each named by its own sha256, and a manifest of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

FORMAT = 1


@dataclass(frozen=True)
class Limits:
    """What is large."""

    single_bytes: int = 1 << 30  #: up to here a file is one object
    part_bytes: int = 64 << 20
    block_bytes: int = 16 << 20  #: of a download; an interrupted one goes on at a block's beginning


LIMITS = Limits()


@dataclass(frozen=True)
class Manifest:
    """The parts of one file, in their order. All but the last are equally long."""

    size_bytes: int
    part_bytes: int
    parts: tuple[str, ...]

    def to_json(self) -> bytes:
        """What is stored."""
        return json.dumps({"format": FORMAT, **vars(self)}).encode()

    def length(self, number: int) -> int:
        """Of a part."""
        return min(self.part_bytes, self.size_bytes - number * self.part_bytes)


def read_manifest(text: bytes) -> Manifest:
    """Raises ValueError for what is none."""
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']} is not known here")
        manifest = Manifest(int(found["size_bytes"]), int(found["part_bytes"]), tuple(found["parts"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a manifest") from error
    if manifest.part_bytes <= 0 or len(manifest.parts) != len(list(cuts(manifest.size_bytes, manifest.part_bytes))):
        raise ValueError("its parts do not add up")
    return manifest


def cuts(size_bytes: int, step_bytes: int) -> Iterator[tuple[int, int]]:
    """From where to where the pieces of a file go."""
    return pairwise([*range(0, size_bytes, step_bytes), size_bytes])


@dataclass(frozen=True)
class Piece:
    """What one request brings: a range of an object."""

    path: str
    start: int
    end: int


def pieces(objects: Iterator[tuple[str, int]], start: int, block_bytes: int) -> Iterator[Piece]:
    """What to ask for from an offset of the whole on; `objects` are paths and lengths, in order."""
    for path, length in objects:
        for low, high in cuts(length, block_bytes):
            if start < high:
                yield Piece(path, max(low, start), high)
        start = max(start - length, 0)
