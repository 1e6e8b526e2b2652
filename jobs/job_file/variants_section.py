"""The section `variants` of a job file: the axes that are multiplied out, and the combinations that are left out."""

from collections.abc import Collection
from functools import cached_property
from math import prod
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jobs import limits
from jobs.engines import ENGINES
from jobs.exporters import EXPORTERS
from jobs.field_types import (
    AllowedNames,
    Degree,
    EnvironmentVariables,
    Nodes,
    OneOrMore,
    QuantizerName,
    Section,
    SetName,
    TargetName,
    Text,
    ToolchainName,
    ToolFlags,
    named_sets,
)
from jobs.job_file.expansion import expand
from jobs.sections import FinetuneOptions
from jobs.stages.given_program import GIVEN
from jobs.toolchains import DEFAULT
from jobs.variants import AXES, HALOCTL, IREE, UNTUNED, Attention, KvCache, KvPrecision, Precision, Variant

ENGINE_NAMES, EXPORTER_NAMES = (
    AllowedNames(lambda: ENGINES),
    AllowedNames(lambda: [name for name in EXPORTERS if name != GIVEN]),
)
EngineName = Annotated[str, AfterValidator(ENGINE_NAMES.validate), ENGINE_NAMES]
ExporterName = Annotated[str, AfterValidator(EXPORTER_NAMES.validate), EXPORTER_NAMES]


def _expect_untuned(sets: dict[str, FinetuneOptions]) -> dict[str, FinetuneOptions]:
    """Return the sets; raises ValueError for options of the one that trains nothing."""
    if sets.get(UNTUNED, FinetuneOptions()) != FinetuneOptions():
        raise ValueError(f"should give {UNTUNED} no options, since it leaves a model as it is")
    return sets


class Exclusion(Section):
    """A rule that leaves out all variants that agree with every key it names."""

    model: Text | None = None
    """A model as `model` names it, or the name that its variants begin with."""
    precision: Precision | None = None
    tp: Degree | None = None
    pp: Degree | None = None
    target: TargetName | None = None
    attention: Attention | None = None
    kv_cache: KvCache | None = None
    kv_precision: KvPrecision | None = None
    engine: EngineName | None = None
    nodes: Nodes | None = None
    quantizer: QuantizerName | None = None
    exporter: ExporterName | None = None
    finetune: SetName | None = None
    flags: SetName | None = None
    env: SetName | None = None
    toolchain: ToolchainName | None = None

    @model_validator(mode="after")
    def _names_a_key(self) -> "Exclusion":
        if not self.model_fields_set:
            raise ValueError(f"should name at least one of {', '.join(type(self).model_fields)}")
        return self


class VariantsSection(Section):
    """The axes of the job's matrix: each combination of their values is a variant, except those in `exclude`."""

    precision: OneOrMore[Precision] = [Precision.F16]
    """Number format of weights and activations; `fp8`, `int8` and `int4` weights are made by a quantizer."""
    tp: OneOrMore[Degree] = [1]
    """Tensor parallelism: devices that every layer is split over."""
    pp: OneOrMore[Degree] = [1]
    """Pipeline parallelism: stages of layers, each on `tp` devices of its own; only with `exporter: sharktank`."""
    target: OneOrMore[TargetName] = ["cpu"]
    """Device that programs are compiled for and run on."""
    attention: OneOrMore[Attention] = [Attention.SDPA]
    """Attention implementation; `flash_attention_2` is for the torch engines on GPUs."""
    kv_cache: OneOrMore[KvCache] = [KvCache.CONTIGUOUS]
    """Layout of the KV cache of exported programs."""
    kv_precision: OneOrMore[KvPrecision] = [KvPrecision.SAME]
    """Number format of keys and values; `same` is that of activations."""
    engine: OneOrMore[EngineName] = [IREE]
    """What runs the model."""
    nodes: OneOrMore[Nodes] = [1]
    """Nodes that the devices are on, the same number on each; more than one is for the torch engines."""
    quantizer: OneOrMore[QuantizerName] = [HALOCTL]
    """What makes low-precision weights and scales."""
    exporter: OneOrMore[ExporterName] = [HALOCTL]
    """What makes a program of the model."""
    finetune: Annotated[
        dict[SetName, FinetuneOptions],
        BeforeValidator(named_sets),
        Field(min_length=1, max_length=limits.MAX_VALUES),
        AfterValidator(_expect_untuned),
    ] = {UNTUNED: FinetuneOptions()}
    """Named sets of options by which models are trained first, each added to the section `finetune`: a list such as
    `[none, {name: lora64, rank: 64}]`. `none` leaves a model as it is."""
    flags: Annotated[dict[SetName, ToolFlags], Field(min_length=1, max_length=limits.MAX_VALUES)] = {DEFAULT: []}
    """Named sets of flags, each added to `compile.flags`, those of the runtime to `benchmark.flags`:
    `{default: [], o3: [--iree-opt-level=O3], one-core: [--task_topology_group_count=1]}`. The name stands in the
    variant's name."""
    env: Annotated[
        dict[SetName, EnvironmentVariables],
        BeforeValidator(named_sets),
        Field(min_length=1, max_length=limits.MAX_VALUES),
    ] = {DEFAULT: {}}
    """Named sets of environment variables, each added to `env`: `{default: {}, no-sdma: {HSA_ENABLE_SDMA: 0}}`, or a
    list such as `[default, {name: no-sdma, HSA_ENABLE_SDMA: 0}]`."""
    toolchain: OneOrMore[ToolchainName] = [DEFAULT]
    """Packages that stages run under, such as `iree-3.12`; `haloctl toolchains` lists them."""
    exclude: Annotated[list[Exclusion], Field(max_length=limits.MAX_EXCLUSIONS)] = []
    """Combinations to leave out, each by some of the keys above or by `model`, such as `{precision: fp8, tp: 8}`."""

    @property
    def combinations(self) -> int:
        """The number of variants of one model, those that are left out included; nothing is expanded for it."""
        return len(self.target) * prod(len(getattr(self, name)) for name in AXES)

    @cached_property
    def unnamed(self) -> list[Variant]:
        """The variants that no model is named in, for checks of combinations."""
        return self.of("")

    def of(self, model: str, aliases: Collection[str] = ()) -> list[Variant]:
        """Return a model's variants in the order of the matrix; exclusions name a model by one of its aliases."""
        rules = [
            rule.model_dump(exclude_unset=True, exclude={"model"})
            for rule in self.exclude
            if rule.model is None or rule.model in aliases
        ]
        return expand(model, self.target, {name: getattr(self, name) for name in AXES}, rules)
