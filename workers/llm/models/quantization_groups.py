"""Groups of columns that share a scale in int4 weights, which a split must not cut. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workers.llm.command_line import BadInput
from workers.llm.models.quantized_layout import largest_group

SIZES = (128, 64, 32, 16)  #: that a job file may ask for, largest first


@dataclass(frozen=True)
class GroupedWeight:
    """A weight whose columns are in groups."""

    columns: int
    groups: int
    is_split: bool  #: each device holds a part of the columns

    def columns_per_device(self, tp: int) -> int:
        """Return the columns on each of `tp` devices."""
        return self.columns // tp if self.is_split else self.columns


def choose_group_size(columns: list[int], requested: int | None) -> int:
    """Return how many columns share a scale in weights of these widths: as requested, else the largest that fits.

    Raises BadInput when the size does not divide all widths.
    """
    size = requested or largest_group(columns)
    indivisible = [width for width in columns if width % size]
    if indivisible:
        raise BadInput(f"groups of {size} do not divide weights of {indivisible[0]} columns: leave group_size out")
    return size


def find_cut_groups(weights: Mapping[str, GroupedWeight], tp: int) -> Iterator[tuple[str, str]]:
    """Yield the modules whose groups a split would cut, with the reason and the remedy."""
    widths = [weight.columns_per_device(tp) for weight in weights.values()]
    fitting = next((size for size in SIZES if not any(width % size for width in widths)), None)
    hint = f"quantize with group_size {fitting}" if fitting else f"no group_size from {SIZES[-1]} fits: take a lower tp"
    for module, weight in weights.items():
        if weight.is_split and weight.groups > 1 and weight.groups % tp:  # every device has the scale of a single group
            part, size = f"{weight.columns / tp:g} of its {weight.columns} columns", weight.columns // weight.groups
            yield module, f"each device holds {part}, which cuts groups of {size} that share a scale: {hint}"
