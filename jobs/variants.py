"""Variants: one model in one precision, one parallelism, one attention kernel and so on, for one target."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import islice, product
from typing import Any

from jobs.models import safe_name
from jobs.task import Node, Pin
from jobs.toolchains import DEFAULT


class Precision(StrEnum):
    """What weights, activations and KV cache are held in."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    FP8 = "fp8"  #: e4m3, weights and inputs of linear modules
    INT8 = "int8"  #: the same
    INT4 = "int4"  #: weights alone


#: Those whose weights and scales a quantizer makes.
QUANTIZED = frozenset({Precision.FP8, Precision.INT8, Precision.INT4})


class Attention(StrEnum):
    """How attention is written into the program."""

    SDPA = "sdpa"  #: one fused operation
    EAGER = "eager"  #: matmul, softmax, matmul: "decomposed" on trackers
    FLASH_2 = "flash_attention_2"  #: the package flash-attn, of the torch engines on GPUs


class Engine(StrEnum):
    """What runs the model."""

    IREE = "iree"  #: compiled into one program for all devices of one node
    TORCH = "torch"  #: transformers, a process for each device, on one node or several
    TORCH_COMPILE = "torch-compile"  #: the same, compiled by torch's own compiler
    VLLM = "vllm"  #: where it is installed, or under a toolchain that has it


TORCH_ENGINES = frozenset({Engine.TORCH, Engine.TORCH_COMPILE})


class On(StrEnum):
    """Where a benchmark is run."""

    ANY = "any"  #: once, wherever there is room
    ONE_PLACE = "one_place"  #: all of them on one and the same device, or on one node where they take several
    EACH_NODE = "each_node"  #: on every node that has the devices, to find the slow one
    EACH_DEVICE = "each_device"  #: on every device of the target's kind


class KvCache(StrEnum):
    """How the program lays out its KV cache."""

    CONTIGUOUS = "contiguous"  #: a row of slots for each sequence
    PAGED = "paged"  #: blocks of a pool, as serving engines have it; calls are given a block table


class KvPrecision(StrEnum):
    """What keys and values are held in."""

    SAME = "same"  #: as activations are
    FP8 = "fp8"  #: e4m3, with a scale for the keys and one for the values of each layer


class Quantizer(StrEnum):
    """What makes low-precision weights and scales of a model; precisions that need none do not ask."""

    HALOCTL = "haloctl"
    BREVITAS = "brevitas"
    LLM_COMPRESSOR = "llm-compressor"
    QUARK = "quark"
    GPTQMODEL = "gptqmodel"
    TORCHAO = "torchao"
    BITSANDBYTES = "bitsandbytes"
    GGUF = "gguf"  #: takes what llama.cpp has quantized


class Exporter(StrEnum):
    """What makes a program of a model."""

    HALOCTL = "haloctl"
    SHARKTANK = "sharktank"  #: the SHARK route: a Hugging Face model becomes shark-ai's own


OVERRIDE_NAMES = {"num_hidden_layers": "L"}


@dataclass(frozen=True, order=True, kw_only=True)
class Axes:
    """What a job multiplies out, beside the target: what makes one variant another than the next."""

    precision: Precision
    attention: Attention
    kv_precision: KvPrecision = KvPrecision.SAME
    kv_cache: KvCache = KvCache.CONTIGUOUS
    tp: int
    pp: int = 1  #: stages that the layers follow one another in, each on `tp` devices of its own
    engine: Engine = Engine.IREE
    nodes: int = 1  #: that its devices are spread over, the same number on each
    quantizer: Quantizer = Quantizer.HALOCTL
    exporter: Exporter = Exporter.HALOCTL
    toolchain: str = DEFAULT  #: what its stages run under, but for those that are not the toolchain's

    @property
    def axes(self) -> dict[str, Any]:
        """By name, in the order above."""
        return {name: getattr(self, name) for name in AXES}

    @property
    def device_count(self) -> int:
        """How many it runs on."""
        return self.tp * self.pp


#: The types of the axes by their names.
AXES: dict[str, type] = {field.name: field.type for field in fields(Axes)}  # type: ignore[misc]

#: What each axis adds to a variant's name, in this order, as trackers write it; values that are not here add their own.
PRECISION_NAMES = {
    Precision.F32: "FP32",
    Precision.F16: "FP16",
    Precision.BF16: "BF16",
    Precision.FP8: "FP8",
    Precision.INT8: "INT8",
    Precision.INT4: "INT4",
}
NAMES: dict[str, Callable[[Any], str]] = {
    "precision": lambda precision: PRECISION_NAMES[precision],
    "attention": lambda attention: {Attention.SDPA: "", Attention.EAGER: "decomposed", Attention.FLASH_2: "flash2"}[
        attention
    ],
    "kv_precision": lambda precision: "" if precision is KvPrecision.SAME else f"KV{precision.upper()}",
    "kv_cache": lambda cache: "" if cache is KvCache.CONTIGUOUS else cache,
    "tp": lambda tp: f"TP{tp}",
    "pp": lambda pp: "" if pp == 1 else f"PP{pp}",
    "nodes": lambda nodes: "" if nodes == 1 else f"{nodes}N",
    "engine": lambda engine: "" if engine is Engine.IREE else engine,
    "quantizer": lambda quantizer: "" if quantizer is Quantizer.HALOCTL else quantizer,
    "exporter": lambda exporter: "" if exporter is Exporter.HALOCTL else exporter,
    "toolchain": lambda toolchain: "" if toolchain == DEFAULT else toolchain,
}


@dataclass(frozen=True, order=True)
class Variant(Axes):
    """One row of the matrix; the target is a column of its own."""

    name: str
    target: str
    pin: Pin | None = field(default=None, kw_only=True)  #: where alone it is measured
    model: str = field(default="", compare=False, kw_only=True)  #: its name; a part of the variant's

    @property
    def unpinned_name(self) -> str:
        """Its name without the place where it is measured."""
        return self.name.partition("@")[0]

    @property
    def plain_name(self) -> str:
        """Its name without that place and without its toolchain."""
        return self.unpinned_name.removesuffix(f"-{self.toolchain}")


def model_name(name: str, overrides: Mapping[str, Any]) -> str:
    """A model's name with what was overridden: `llama3.1-70B-L4`."""
    parts = (
        f"-{OVERRIDE_NAMES[key]}{value}" if key in OVERRIDE_NAMES else f"-{safe_name(f'{key}_{value}')}"
        for key, value in sorted(overrides.items())
    )
    return name + "".join(parts)


def variant_name(model: str, axes: Axes) -> str:
    """The name that trackers use: `llama3.1-70B-FP16-decomposed-TP8`, and `-2N-torch` where it is of torch's ranks.

    A toolchain that is not the default comes last: `llama3.1-70B-FP16-TP8-iree-3.12`.
    """
    return "-".join((model, *(part for name, shown in NAMES.items() if (part := shown(getattr(axes, name))))))


def expand(
    model: str,
    targets: Iterable[str],
    choices: Mapping[str, Iterable[Any]],
    exclude: Iterable[Mapping[str, Any]] = (),
) -> list[Variant]:
    """Multiply everything out, in the order given, without what agrees with all keys of an exclusion.

    `choices` are the values of each axis; the last axis changes first. What is the same is there once (`settled`).
    """
    exclude = list(exclude)
    made = (
        (target, Axes(**dict(zip(choices, values, strict=True))))
        for target, *values in product(targets, *choices.values())
    )
    chosen = (
        (target, axes)
        for target, axes in made
        if not any(
            all({**axes.axes, "target": target}[key] == value for key, value in rule.items()) for rule in exclude
        )
    )
    return list(dict.fromkeys(variant_of(model, target, settled(axes)) for target, axes in chosen))


def variant_of(model: str, target: str, axes: Axes) -> Variant:
    """A variant with its name."""
    return Variant(variant_name(model, axes), target, **axes.axes)


def is_quantized(axes: Axes) -> bool:
    """Whether some of it is held in what a quantizer makes."""
    return axes.precision in QUANTIZED or axes.kv_precision is not KvPrecision.SAME


def settled(axes: Axes, *, has_quantizer: bool = True) -> Axes:
    """Axes that mean nothing for a variant at their default: nobody quantizes f16, only iree has programs."""
    if axes.engine is not Engine.IREE:
        axes = replace(axes, exporter=Exporter.HALOCTL, kv_cache=KvCache.CONTIGUOUS)
    if axes.exporter is Exporter.SHARKTANK:
        axes = replace(axes, kv_cache=KvCache.PAGED)  # it has no other
    if not (has_quantizer and is_quantized(axes)):
        axes = replace(axes, quantizer=Quantizer.HALOCTL)
    return axes


def spread(variants: Iterable[Variant], on: On, nodes: Sequence[Node]) -> list[Variant]:
    """A variant for each place where it is to be measured: `tiny-llama-FP16-TP1@node`, or `@node:3` for a device."""
    return [
        found
        for variant in variants
        for found in ([variant] if on is On.ANY else [_pinned(variant, pin) for pin in _pins(variant, on, nodes)])
    ]


def _pinned(variant: Variant, pin: Pin) -> Variant:
    place = f"{pin.node}:{pin.devices[0]}" if len(pin.devices) == 1 else pin.node
    return replace(variant, name=f"{variant.name}@{place}", pin=pin)


def _pins(variant: Variant, on: On, nodes: Sequence[Node]) -> Iterator[Pin]:
    if on is On.ONE_PLACE:
        able = (node for node in nodes if node.count(variant.target) >= variant.device_count)
        yield from (Pin(node.id, _devices(node, variant)[: variant.device_count]) for node in islice(able, 1))
        return
    for node in nodes:
        if on is On.EACH_DEVICE:
            yield from (Pin(node.id, (index,)) for index in _devices(node, variant))
        elif node.count(variant.target) >= variant.device_count:
            yield Pin(node.id)


def _devices(node: Node, variant: Variant) -> tuple[int, ...]:
    return tuple(device.index for device in node.devices if device.kind == variant.target)
