"""Where a rank's parameters lie: those of a decoder layer are one entry of its archive, and one global of the program.

iree-compile 3.13 looks at all globals again and again. With one for each weight, llama3.1-405B on 8 ranks has 7,000 of
them, and they were two thirds of its compile time. What a layer reads are slices of its entry, which IREE never copies.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAYER = re.compile(r"(?P<layer>.*\.layers\.\d+)\.")
ALIGNMENT_BYTES = 256  #: of each parameter in its entry, which begins at such an address in the memory of a GPU


@dataclass(frozen=True)
class Slot:
    """Where a parameter's bytes are; the entry's name is relative to the rank, as the parameter's own is."""

    entry: str
    offset_bytes: int
    size_bytes: int


@dataclass
class Packing:
    """One rank's parameters."""

    slots: dict[str, Slot] = field(default_factory=dict)  #: by the parameter's name
    sizes: dict[str, int] = field(default_factory=dict)  #: bytes of each entry
    types: dict[str, Any] = field(default_factory=dict)  #: of each entry, or None where it is of several types


def entry_of(name: str) -> str:
    """The entry that a parameter lies in: its layer's, or its own where it is outside of the layers."""
    found = LAYER.match(name)
    return found["layer"] if found else name


def pack(sizes: Mapping[str, int], types: Mapping[str, Any]) -> Packing:
    """Lay parameters of these sizes (bytes) and types into entries, in the order given."""
    packing = Packing()
    for name, size in sizes.items():
        entry = entry_of(name)
        offset = _aligned(packing.sizes.get(entry, 0))
        packing.slots[name] = Slot(entry, offset, size)
        packing.sizes[entry] = offset + size
        is_alike = packing.types.setdefault(entry, types[name]) == types[name]
        packing.types[entry] = types[name] if is_alike else None
    return packing


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
