"""The job file: its keys, their types and defaults. Unknown keys are refused."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from jobs.targets import TARGETS
from jobs.variants import Attention, Engine, On, Precision, Variant, expand

DURATION = re.compile(r"(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+)s)?")
StageName = Literal["export", "compile", "invoke", "numerics", "benchmark"]


def _seconds(value: object) -> object:
    if isinstance(value, str):
        found = DURATION.fullmatch(value.strip())
        if not found or not any(found.groups()):
            raise ValueError("should be a duration such as 90s, 30m or 1h30m")
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return float(hours * 3600 + minutes * 60 + seconds)
    return value


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("should name each value once")
    return values


def _known_target(name: str) -> str:
    if name not in TARGETS:
        raise ValueError(f"should be one of {', '.join(TARGETS)}")
    return name


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Target = Annotated[str, BeforeValidator(_known_target)]
Tp = Annotated[int, Field(ge=1, le=64)]
Count = Annotated[int, Field(ge=1)]
MOST_PRIORITY = 1000
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
Override = str | int | float | bool | None | list[Any] | dict[str, Any]
NOT_EMPTY = Field(min_length=1)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exclusion(_Section):
    """Variants that are left out: those that agree with every key given."""

    precision: Precision | None = None
    tp: Tp | None = None
    target: Target | None = None
    attention: Attention | None = None
    engine: Engine | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Exclusion":
        if not self.model_fields_set:
            raise ValueError("should name at least one of precision, tp, target, attention, engine, nodes")
        return self


class Variants(_Section):
    """What a job multiplies out; a single value stands for a list of one."""

    precision: Annotated[list[Precision], BeforeValidator(_listed), NOT_EMPTY] = [Precision.F16]
    tp: Annotated[list[Tp], BeforeValidator(_listed), NOT_EMPTY] = [1]
    target: Annotated[list[Target], BeforeValidator(_listed), NOT_EMPTY] = ["cpu"]
    attention: Annotated[list[Attention], BeforeValidator(_listed), NOT_EMPTY] = [Attention.SDPA]
    engine: Annotated[list[Engine], BeforeValidator(_listed), NOT_EMPTY] = [Engine.IREE]
    nodes: Annotated[list[Count], BeforeValidator(_listed), NOT_EMPTY] = [1]
    exclude: list[Exclusion] = []

    @model_validator(mode="after")
    def _each_once(self) -> "Variants":
        for key in ("precision", "tp", "target", "attention", "engine", "nodes"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key} should name each value once")
        return self

    @model_validator(mode="after")
    def _spread(self) -> "Variants":
        for variant in self.of(""):
            if variant.nodes > 1 and variant.engine is Engine.IREE:
                what = f"engine: iree, nodes: {variant.nodes}"
                raise ValueError(f"programs of the engine iree run on one node: leave out {{{what}}} with exclude")
            if variant.tp % variant.nodes:
                what = f"tp: {variant.tp}, nodes: {variant.nodes}"
                raise ValueError(
                    f"{variant.tp} ranks do not spread evenly over {variant.nodes} nodes: "
                    f"leave out {{{what}}} with exclude"
                )
        return self

    def of(self, model: str) -> list[Variant]:
        """The variants of a model, in the order of the matrix."""
        rules = [rule.model_dump(exclude_unset=True) for rule in self.exclude]
        return expand(
            model, self.precision, self.attention, self.tp, self.target, rules, engines=self.engine, nodes=self.nodes
        )


class Workload(_Section):
    """What the programs are made for and timed with: every batch size with every prompt length."""

    batch: Annotated[list[Count], BeforeValidator(_listed), NOT_EMPTY] = [1]
    prompt_tokens: Annotated[list[Count], BeforeValidator(_listed), NOT_EMPTY] = [64]
    new_tokens: Count = 32

    @model_validator(mode="after")
    def _each_once(self) -> "Workload":
        for key in ("batch", "prompt_tokens"):
            _distinct(getattr(self, key))
        return self

    @property
    def cache_tokens(self) -> int:
        """Positions that the KV cache needs for one row."""
        return max(self.prompt_tokens) + self.new_tokens


class Numerics(_Section):
    """How the compiled program is compared with the reference."""

    windows: Count = 16
    max_perplexity_increase_percent: Annotated[float, Field(gt=0)] = 1.0
    text: str | None = None  #: a file to take the windows from; by default the shipped held-out text


class Benchmark(_Section):
    """How often each entry point is timed (each repetition is one sample), where, and beside what."""

    warmup: Annotated[int, Field(ge=0)] = 1
    repetitions: Count = 5
    quiet: bool | None = None  #: nothing else may run on its nodes meanwhile; by default as the target has it
    on: On = On.ANY


class Compile(_Section):
    """What is added to the flags of the target."""

    flags: list[Annotated[str, Field(pattern=r"^--[\w-]+(=.*)?$")]] = []


class JobSpec(_Section):
    """One job file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    overrides: dict[str, Override] = {}
    variants: Variants = Variants()
    stages: Annotated[list[StageName], NOT_EMPTY] = ["export", "compile", "invoke", "numerics", "benchmark"]
    workload: Workload = Workload()
    compile: Compile = Compile()
    numerics: Numerics = Numerics()
    benchmark: Benchmark = Benchmark()
    timeout: Seconds = 1800.0  #: of one attempt
    job_timeout: Seconds | None = None  #: of the whole job, from its submission; none: as long as it takes
    priority: Priority = 0  #: higher goes first

    @model_validator(mode="after")
    def _stages_fit(self) -> "JobSpec":
        _distinct(self.stages)
        return self
