"""The layout of a rank's archive: each decoder layer's parameters are one entry, and one global of the program.

iree-compile 3.13 visits all globals again and again. With one for each weight, llama3.1-405B on 8 ranks has 7,000 of
them, which took two thirds of its compile time. A layer reads slices of its entry, which IREE never copies.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LAYER = re.compile(r"(?P<layer>.*\.layers\.\d+)\.")
ALIGNMENT_BYTES = 256  #: of each parameter in its entry, which has the same alignment in GPU memory


@dataclass(frozen=True)
class ParameterSlot:
    """The place of a parameter's bytes."""

    entry: str  #: name without the rank, as the parameter's own
    offset_bytes: int
    size_bytes: int


@dataclass
class ArchiveLayout:
    """The entries of one rank's archive, and the parameters in them."""

    slots: dict[str, ParameterSlot] = field(default_factory=dict)  #: by the parameter's name
    sizes: dict[str, int] = field(default_factory=dict)  #: bytes of each entry
    types: dict[str, Any] = field(
        default_factory=dict
    )  #: dtype of each entry, or None where its parameters have several


def lay_out_archive(sizes: Mapping[str, int], types: Mapping[str, Any]) -> ArchiveLayout:
    """Lay parameters of these sizes (bytes) and dtypes into entries, in this order.

    The entry of a parameter is its decoder layer's, or its own outside of the layers.
    """
    archive = ArchiveLayout()
    for name, size in sizes.items():
        layer = LAYER.match(name)
        entry = layer["layer"] if layer else name
        offset = -(-archive.sizes.get(entry, 0) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        archive.slots[name] = ParameterSlot(entry, offset, size)
        archive.sizes[entry] = offset + size
        is_alike = archive.types.setdefault(entry, types[name]) == types[name]
        archive.types[entry] = types[name] if is_alike else None
    return archive
