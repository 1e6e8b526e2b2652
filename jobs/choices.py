"""The part of a job file that is multiplied out: its variants, and those that cannot be."""

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, model_validator

from jobs import exporters, quantizers
from jobs.fields import NOT_EMPTY, SECTION, Count, Target, ToolchainName, Tp, listed
from jobs.targets import TARGETS, fp8_problem
from jobs.toolchains import DEFAULT
from jobs.variants import (
    AXES,
    QUANTIZED,
    TORCH_ENGINES,
    Attention,
    Engine,
    Exporter,
    KvCache,
    KvPrecision,
    Precision,
    Quantizer,
    Variant,
    expand,
    is_quantized,
)


class _Section(BaseModel):
    model_config = SECTION


class Exclusion(_Section):
    """Variants that are left out: those that agree with every key given."""

    model: str | None = None  #: as `model:` names it, or as its variants are called
    precision: Precision | None = None
    tp: Tp | None = None
    pp: Tp | None = None
    target: Target | None = None
    attention: Attention | None = None
    kv_cache: KvCache | None = None
    kv_precision: KvPrecision | None = None
    engine: Engine | None = None
    nodes: Count | None = None
    quantizer: Quantizer | None = None
    exporter: Exporter | None = None
    toolchain: ToolchainName | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Exclusion":
        if not self.model_fields_set:
            raise ValueError(f"should name at least one of {', '.join(type(self).model_fields)}")
        return self


class Variants(_Section):
    """What a job multiplies out; a single value stands for a list of one."""

    precision: Annotated[list[Precision], BeforeValidator(listed), NOT_EMPTY] = [Precision.F16]
    tp: Annotated[list[Tp], BeforeValidator(listed), NOT_EMPTY] = [1]
    pp: Annotated[list[Tp], BeforeValidator(listed), NOT_EMPTY] = [1]
    target: Annotated[list[Target], BeforeValidator(listed), NOT_EMPTY] = ["cpu"]
    attention: Annotated[list[Attention], BeforeValidator(listed), NOT_EMPTY] = [Attention.SDPA]
    kv_cache: Annotated[list[KvCache], BeforeValidator(listed), NOT_EMPTY] = [KvCache.CONTIGUOUS]
    kv_precision: Annotated[list[KvPrecision], BeforeValidator(listed), NOT_EMPTY] = [KvPrecision.SAME]
    engine: Annotated[list[Engine], BeforeValidator(listed), NOT_EMPTY] = [Engine.IREE]
    nodes: Annotated[list[Count], BeforeValidator(listed), NOT_EMPTY] = [1]
    quantizer: Annotated[list[Quantizer], BeforeValidator(listed), NOT_EMPTY] = [Quantizer.HALOCTL]
    exporter: Annotated[list[Exporter], BeforeValidator(listed), NOT_EMPTY] = [Exporter.HALOCTL]
    toolchain: Annotated[list[ToolchainName], BeforeValidator(listed), NOT_EMPTY] = [DEFAULT]
    exclude: list[Exclusion] = []

    @model_validator(mode="after")
    def _each_once(self) -> "Variants":
        for key in ("target", *AXES):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ValueError(f"{key} should name each value once")
        return self

    @model_validator(mode="after")
    def _can_be_made(self) -> "Variants":
        for variant in self.of(""):
            found = exporters.problem(variant) or quantizers.problem(variant)
            if found:
                keys = ("precision", "kv_precision", "tp", "pp", "quantizer", "exporter")
                what = ", ".join(f"{key}: {getattr(variant, key)}" for key in keys)
                raise ValueError(f"{found}: leave out {{{what}}} with exclude")
        return self

    @model_validator(mode="after")
    def _fp8_compiles(self) -> "Variants":
        for variant in self.of(""):
            precisions = {"precision": variant.precision.value, "kv_precision": variant.kv_precision.value}
            found = fp8_problem(variant.target, precisions.values()) if variant.engine is Engine.IREE else None
            if found:
                key = next(key for key, precision in precisions.items() if precision == "fp8")
                raise ValueError(f"{found}: leave out {{{key}: fp8, target: {variant.target}}} with exclude")
        return self

    @model_validator(mode="after")
    def _spread(self) -> "Variants":
        for variant in self.of(""):
            if variant.nodes > 1 and variant.engine not in TORCH_ENGINES:
                engine = variant.engine.value
                what = f"engine: {engine}, nodes: {variant.nodes}"
                raise ValueError(f"programs of the engine {engine} run on one node: leave out {{{what}}} with exclude")
            if variant.tp % variant.nodes:
                what = f"tp: {variant.tp}, nodes: {variant.nodes}"
                raise ValueError(
                    f"{variant.tp} ranks do not spread evenly over {variant.nodes} nodes: "
                    f"leave out {{{what}}} with exclude"
                )
        return self

    @model_validator(mode="after")
    def _suits_its_engine(self) -> "Variants":
        for variant in self.of(""):
            what = f"engine: {variant.engine.value}, target: {variant.target}, attention: {variant.attention.value}"
            if variant.attention is Attention.FLASH_2 and variant.engine not in TORCH_ENGINES:
                raise ValueError(f"flash_attention_2 is of the torch engines: leave out {{{what}}} with exclude")
            if variant.attention is Attention.FLASH_2 and TARGETS[variant.target].torch_device == "cpu":
                raise ValueError(f"flash_attention_2 runs on GPUs alone: leave out {{{what}}} with exclude")
            if variant.engine is not Engine.IREE and is_quantized(variant):
                able = ", ".join(one for one in Precision if one not in QUANTIZED)
                what = f"engine: {variant.engine.value}, precision: {variant.precision.value}"
                raise ValueError(f"the engine {variant.engine} runs {able} alone: leave out {{{what}}} with exclude")
            if variant.engine is Engine.VLLM and variant.attention is not Attention.SDPA:
                raise ValueError(f"vllm chooses its attention itself: leave out {{{what}}} with exclude")
        return self

    def of(self, model: str, called: Collection[str] = ()) -> list[Variant]:
        """The variants of a model, in the order of the matrix; exclusions of one model name it as it is `called`."""
        rules = [
            rule.model_dump(exclude_unset=True, exclude={"model"})
            for rule in self.exclude
            if rule.model is None or rule.model in called
        ]
        return expand(model, self.target, {name: getattr(self, name) for name in AXES}, rules)
