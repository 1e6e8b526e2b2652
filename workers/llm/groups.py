"""Groups of columns that share a scale, in weights of four bits, against a split: no group may be cut. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workers.llm.program import BadInput
from workers.llm.quantized_layout import largest_group

SIZES = (128, 64, 32, 16)  #: that haloctl quantizes with, and what a job file may ask for


@dataclass(frozen=True)
class Grouped:
    """A weight whose columns are in groups; `is_split` where each device holds a part of them."""

    columns: int
    groups: int
    is_split: bool

    def held(self, tp: int) -> int:
        """Columns on each of `tp` devices."""
        return self.columns // tp if self.is_split else self.columns


def group_size(columns: list[int], asked: int | None) -> int:
    """How many columns share a scale in weights of these widths: as asked, else the largest size that divides them.

    Raises BadInput where the widths can't be divided so.
    """
    size = asked or largest_group(columns)
    odd = [width for width in columns if width % size]
    if odd:
        raise BadInput(f"groups of {size} do not divide weights of {odd[0]} columns: leave group_size out")
    return size


def cut_groups(weights: Mapping[str, Grouped], tp: int) -> Iterator[tuple[str, str]]:
    """Modules whose groups a split would cut, each with the reason and with what to do."""
    fitting = next((size for size in SIZES if not any(one.held(tp) % size for one in weights.values())), None)
    hint = f"quantize with group_size {fitting}" if fitting else f"no group_size from {SIZES[-1]} fits: take a lower tp"
    for module, one in weights.items():
        if one.is_split and one.groups > 1 and one.groups % tp:  # one group's scale is every device's
            part, size = f"{one.columns / tp:g} of its {one.columns} columns", one.columns // one.groups
            yield module, f"each device holds {part}, which cuts groups of {size} that share a scale: {hint}"
