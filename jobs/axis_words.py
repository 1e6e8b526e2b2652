"""The values of the axes of variants that are words."""

from collections.abc import Collection, Mapping
from enum import StrEnum

from jobs.engines import ENGINES
from jobs.exporters import EXPORTERS
from jobs.quantizers import QUANTIZERS
from jobs.variants import AXES

WORDS_OF_AXES: Mapping[str, Collection[str]] = {
    **{axis: list(kind) for axis, kind in AXES.items() if issubclass(kind, StrEnum)},
    "engine": ENGINES,
    "quantizer": QUANTIZERS,
    "exporter": EXPORTERS,
}
