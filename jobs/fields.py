"""The types of a job file's values, with what is said of a wrong one."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from jobs.metrics import METRICS
from jobs.targets import TARGETS
from jobs.toolchains import NAME

DURATION = re.compile(r"(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+)s)?")
StageName = Literal["quantize", "export", "compile", "invoke", "numerics", "benchmark"]


def _seconds(value: object) -> object:
    if isinstance(value, str):
        found = DURATION.fullmatch(value.strip())
        if not found or not any(found.groups()):
            raise ValueError("should be a duration such as 90s, 30m or 1h30m")
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    return value


def listed(value: object) -> object:
    """A single value stands for a list of one."""
    return value if isinstance(value, list) else [value]


def distinct(values: list[Any]) -> list[Any]:
    """The same; raises ValueError when one is there twice."""
    if len(set(values)) < len(values):
        raise ValueError("should name each value once")
    return values


def _known_target(name: str) -> str:
    if name not in TARGETS:
        raise ValueError(f"should be one of {', '.join(TARGETS)}")
    return name


def _timed(name: str) -> str:
    able = [metric for metric, row in METRICS.items() if row.unit in ("ms", "s", "tokens/s")]
    if name not in able:
        raise ValueError(f"should be one of {', '.join(able)}")
    return name


def _measure(text: object) -> object:
    if not re.fullmatch(rf"last-good|target|toolchain:{NAME.pattern}", str(text)):
        raise ValueError("should be last-good, target, or toolchain: with its name, such as toolchain:iree-3.12")
    return text


Measure = Annotated[str, BeforeValidator(_measure)]
GatedMetric = Annotated[str, BeforeValidator(_timed)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Target = Annotated[str, BeforeValidator(_known_target)]
Tp = Annotated[int, Field(ge=1, le=64)]
Count = Annotated[int, Field(ge=1)]
ModelName = Annotated[str, Field(min_length=1)]
ToolchainName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
MOST_PRIORITY = 1000
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
Override = str | int | float | bool | None | list[Any] | dict[str, Any]
NOT_EMPTY = Field(min_length=1)
#: Of each part of a job file: keys that it does not know are refused.
SECTION = ConfigDict(extra="forbid", frozen=True)
