"""The types of a job file's values, with the messages about wrong values."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from jobs import limits
from jobs.input_files import InputFile, InputFolder
from jobs.metrics import EXACT, METRICS
from jobs.plain_text import escape_hidden, has_hidden
from jobs.quantizers import QUANTIZERS
from jobs.targets import TARGETS
from jobs.toolchains import NAME

T = TypeVar("T")

DURATION = re.compile(r"(?:([0-9]{1,9})h)?\s*(?:([0-9]{1,9})m)?\s*(?:([0-9]{1,9})s)?")
MOST_PRIORITY = 1000
#: of metrics that a gate can be on: times, rates, energy and power, which all vary from run to run
GATED_UNITS = frozenset({"ms", "s", "tokens/s", "requests/s", "J", "tokens/J", "W"})


class Section(BaseModel):
    """A part of a job file; it refuses keys that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class AllowedNames:
    """The names that a key's value is one of: the keys of a table, read when a value is validated."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.names = names

    def validate(self, name: str) -> str:
        """Return the name; raises ValueError if it is not allowed."""
        if name not in self.names():
            raise ValueError(f"should be one of {', '.join(self.names())}")
        return name


def _gated_metrics() -> list[str]:
    exact = {metric for metrics in EXACT.values() for metric in metrics}
    return [*(name for name, metric in METRICS.items() if metric.unit in GATED_UNITS and name not in exact), *EXACT]


TARGET_NAMES = AllowedNames(lambda: TARGETS)
QUANTIZER_NAMES = AllowedNames(lambda: QUANTIZERS)
GATED_METRICS = AllowedNames(_gated_metrics)


def _seconds(value: object) -> object:
    if isinstance(value, str):
        match = DURATION.fullmatch(value.strip())
        if not match or not any(match.groups()):
            raise ValueError("should be a duration such as 90s, 30m or 1h30m")
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    return value


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def distinct(values: list[Any]) -> list[Any]:
    """Return the values; raises ValueError if one occurs twice."""
    if len(set(values)) < len(values):
        raise ValueError("should name each value once")
    return values


def expect_plain(value: object) -> object:
    """Return a JSON value; raises ValueError for a number that JSON or other programs can't hold."""
    if isinstance(value, dict):
        return {key: expect_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [expect_plain(inner) for inner in value]
    if isinstance(value, str) and len(value) > limits.MAX_TEXT:
        raise ValueError(f"should have texts of at most {limits.MAX_TEXT} characters")
    if isinstance(value, int | float) and not abs(value) <= limits.MAX_NUMBER:  # NaN compares as false
        raise ValueError(f"should have only finite numbers up to {limits.MAX_NUMBER}")
    return value


def visible(text: str) -> str:
    """Return a text; raises ValueError if it has characters that can't be seen."""
    if has_hidden(text):
        raise ValueError(f"has characters that can't be seen: {escape_hidden(text)}")
    return text


def expect_small(values: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping; raises ValueError if it would not fit into a command line."""
    if len(json.dumps(values)) > limits.MAX_MAPPING_BYTES:
        raise ValueError(f"should take at most {limits.MAX_MAPPING_BYTES >> 10} KiB")
    return values


def _baseline(text: object) -> object:
    if not re.fullmatch(rf"last-good|target|toolchain:{NAME.pattern}", str(text)):
        raise ValueError("should be last-good, target, or toolchain: and its name, such as toolchain:iree-3.12")
    return text


def _as_file(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


TargetName = Annotated[str, AfterValidator(TARGET_NAMES.validate), TARGET_NAMES]
QuantizerName = Annotated[str, AfterValidator(QUANTIZER_NAMES.validate), QUANTIZER_NAMES]
GatedMetric = Annotated[str, AfterValidator(GATED_METRICS.validate), GATED_METRICS]
ToolchainName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Text = Annotated[str, Field(max_length=limits.MAX_TEXT)]  #: a path, a name or a word
ModelName = Annotated[Text, Field(min_length=1)]
FileName = Annotated[InputFile, BeforeValidator(_as_file)]  #: a path, or a mapping that pins the sha256 as well
FolderName = Annotated[InputFolder, BeforeValidator(_as_file)]  #: a path; a job that is stored has its files as well
Baseline = Annotated[str, BeforeValidator(_baseline)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=limits.MAX_TIMEOUT_S)]
Degree = Annotated[int, Field(ge=1, le=64)]  #: of parallelism
Count = Annotated[int, Field(ge=1, le=limits.MAX_REPETITIONS)]
Batch = Annotated[int, Field(ge=1, le=limits.MAX_BATCH)]
Tokens = Annotated[int, Field(ge=1, le=limits.MAX_TOKENS)]
Windows = Annotated[int, Field(ge=1, le=limits.MAX_WINDOWS)]
Nodes = Annotated[int, Field(ge=1, le=limits.MAX_NODES)]
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
#: A key of a config.json, which is part of a flag.
OverrideKey = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,99}$")]
OverrideValue = Annotated[str | int | float | bool | list[Any] | dict[str, Any] | None, BeforeValidator(expect_plain)]
#: Distinct values, at least one; a single value stands for a list of one.
OneOrMore = Annotated[
    list[T], BeforeValidator(_as_list), Field(min_length=1, max_length=limits.MAX_VALUES), AfterValidator(distinct)
]


def _variable_value(value: object) -> object:
    """Return a number as the text that the environment holds."""
    return f"{value}" if isinstance(value, int | float) and not isinstance(value, bool) else value


def named_sets(value: object) -> object:
    """Return sets of options by name from their other form, a list of names and of mappings with a `name`."""
    if not isinstance(value, list):
        return value
    sets: dict[object, object] = {}
    for entry in value:
        options = dict(entry) if isinstance(entry, dict) else {}
        name = options.pop("name", None) if isinstance(entry, dict) else entry
        if not isinstance(name, str) or name in sets:
            raise ValueError("should hold names, or mappings with a `name` of their own each")
        sets[name] = options
    return sets


#: An argument that a program is given in iree-run-module's way: a shape with its element type, and perhaps values.
ARRAY = re.compile(r"(\d+x)*(bf16|[a-z]\d{1,2})(=[-+0-9a-zA-Z., \[\]]*)?")


def _program_input(value: object) -> object:
    """Return an array as it is written, and anything else as a file."""
    return value if isinstance(value, str) and ARRAY.fullmatch(value) else _as_file(value)


ProgramInput = Annotated[Text | InputFile, BeforeValidator(_program_input)]
TaskName = Annotated[str, Field(pattern=r"^[\w][\w.,:+-]*$", max_length=200)]
ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]{0,199}$")]  #: of a torch module
SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=40)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
EnvironmentVariables = Annotated[
    dict[VariableName, Annotated[Text, BeforeValidator(_variable_value)]], Field(max_length=limits.MAX_VALUES)
]
ToolFlags = Annotated[list[Annotated[Text, Field(pattern=r"^--[\w-]+(=.*)?$")]], Field(max_length=limits.MAX_VALUES)]
