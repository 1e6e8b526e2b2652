"""Variants: one model in one precision, one parallelism, one attention kernel and so on, for one target."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from jobs.hashing import digest_of
from jobs.models import safe_name
from jobs.task import Node, Pin
from jobs.toolchains import DEFAULT

IREE = "iree"  #: the default engine (`jobs.engines.ENGINES`)
UNTUNED = "none"  #: the name of the set of `finetune` that leaves a model as it is
HALOCTL = "haloctl"  #: the default quantizer and exporter (`jobs.quantizers.QUANTIZERS`, `jobs.exporters.EXPORTERS`)


class Precision(StrEnum):
    """The number format of weights, activations and KV cache."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    FP8 = "fp8"  #: e4m3, for weights and inputs of linear modules
    INT8 = "int8"  #: for weights and inputs of linear modules
    INT4 = "int4"  #: for weights only


#: Precisions whose weights and scales a quantizer makes.
QUANTIZED = frozenset({Precision.FP8, Precision.INT8, Precision.INT4})


class Attention(StrEnum):
    """The attention implementation of the program."""

    SDPA = "sdpa"  #: one fused operation
    EAGER = "eager"  #: matmul, softmax, matmul: "decomposed" on trackers
    FLASH_2 = "flash_attention_2"  #: the package flash-attn, for the torch engines on GPUs


class BenchmarkPlacement(StrEnum):
    """Where a benchmark runs."""

    ANY = "any"  #: once, on whichever node has room
    ONE_PLACE = "one_place"  #: every variant on one and the same device, or on one node when it takes several devices
    EACH_NODE = "each_node"  #: on every node that has the devices, to find the slow one
    EACH_DEVICE = "each_device"  #: on every device of the target's kind


class KvCache(StrEnum):
    """The layout of the program's KV cache."""

    CONTIGUOUS = "contiguous"  #: a row of slots for each sequence
    PAGED = "paged"  #: blocks of a pool, as in serving engines; calls are given a block table


class KvPrecision(StrEnum):
    """The number format of keys and values."""

    SAME = "same"  #: the format of activations
    FP8 = "fp8"  #: e4m3, with a scale for the keys and one for the values of each layer


MAX_OVERRIDES_TEXT = 80  #: characters of a model's overrides in its name; more are a digest
OVERRIDE_NAMES = {"num_hidden_layers": "L"}


@dataclass(frozen=True, order=True, kw_only=True)
class Axes:
    """The values that a job multiplies out, apart from model and target: what tells variants apart."""

    precision: Precision
    attention: Attention
    kv_precision: KvPrecision = KvPrecision.SAME
    kv_cache: KvCache = KvCache.CONTIGUOUS
    tp: int
    pp: int = 1  #: pipeline stages, each of which runs some of the layers on `tp` devices of its own
    engine: str = IREE  #: a name in `jobs.engines.ENGINES`
    nodes: int = 1  #: nodes that its devices are on, the same number on each
    quantizer: str = HALOCTL  #: a name in `jobs.quantizers.QUANTIZERS`
    exporter: str = HALOCTL  #: a name in `jobs.exporters.EXPORTERS`
    finetune: str = UNTUNED  #: name of a set of options in its job file, by which its model is trained first
    flags: str = DEFAULT  #: name of a set of compiler flags in its job file
    env: str = DEFAULT  #: name of a set of environment variables in its job file
    toolchain: str = DEFAULT  #: what its stages run under; stages that the toolchain is not for run under the default

    @property
    def axes(self) -> dict[str, Any]:
        """The values by name, in the order above."""
        return {name: getattr(self, name) for name in AXES}

    @property
    def device_count(self) -> int:
        """The number of devices that it runs on."""
        return self.tp * self.pp


#: The types of the axes by name.
AXES: dict[str, type] = {field.name: field.type for field in fields(Axes)}  # type: ignore[misc]

#: The defaults of the axes that have one.
AXIS_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in fields(Axes) if field.name not in ("precision", "attention", "tp")
}

PRECISION_NAMES = {
    Precision.F32: "FP32",
    Precision.F16: "FP16",
    Precision.BF16: "BF16",
    Precision.FP8: "FP8",
    Precision.INT8: "INT8",
    Precision.INT4: "INT4",
}
ATTENTION_NAMES = {Attention.SDPA: "", Attention.EAGER: "decomposed", Attention.FLASH_2: "flash2"}


def _unless(default: str) -> Callable[[str], str]:
    return lambda value: "" if value == default else value


#: The part of a variant's name that each axis makes, in this order, as trackers write it; an empty part is left out.
NAME_PARTS: dict[str, Callable[[Any], str]] = {
    "finetune": _unless(UNTUNED),
    "precision": PRECISION_NAMES.__getitem__,
    "attention": ATTENTION_NAMES.__getitem__,
    "kv_precision": lambda precision: "" if precision is KvPrecision.SAME else f"KV{precision.upper()}",
    "kv_cache": _unless(KvCache.CONTIGUOUS),
    "tp": lambda tp: f"TP{tp}",
    "pp": lambda pp: "" if pp == 1 else f"PP{pp}",
    "nodes": lambda nodes: "" if nodes == 1 else f"{nodes}N",
    "engine": _unless(IREE),
    "quantizer": _unless(HALOCTL),
    "exporter": _unless(HALOCTL),
    "flags": _unless(DEFAULT),
    "env": _unless(DEFAULT),
    "toolchain": _unless(DEFAULT),
}


@dataclass(frozen=True, order=True)
class Variant(Axes):
    """One row of the matrix; the target is a column of its own."""

    name: str
    target: str
    pin: Pin | None = field(default=None, kw_only=True)  #: the only place where it is measured
    model: str = field(default="", compare=False, kw_only=True)  #: its name, with which the variant's name begins

    @property
    def unpinned_name(self) -> str:
        """Its name without the place where it is measured."""
        return self.name.partition("@")[0]

    @property
    def plain_name(self) -> str:
        """Its name without that place and without its toolchain."""
        return self.unpinned_name.removesuffix(f"-{self.toolchain}")


def model_name(name: str, overrides: Mapping[str, Any]) -> str:
    """Return a model's name with its overrides: `llama3.1-70B-L4`."""
    parts = (
        f"-{OVERRIDE_NAMES[key]}{value}" if key in OVERRIDE_NAMES else f"-{safe_name(f'{key}_{value}')}"
        for key, value in sorted(overrides.items())
    )
    text = "".join(parts)
    return name + (text if len(text) <= MAX_OVERRIDES_TEXT else f"-overrides_{digest_of(dict(overrides))[:12]}")


def variant_name(model: str, axes: Axes) -> str:
    """Return the name that trackers use: `llama3.1-70B-FP16-decomposed-TP8`, or `...-TP8-2N-torch` for torch's ranks.

    Named sets of flags and variables, and a toolchain other than the default come last:
    `llama3.1-70B-FP16-TP8-o3-iree-3.12`.
    """
    return "-".join((model, *(part for axis, name_of in NAME_PARTS.items() if (part := name_of(getattr(axes, axis))))))


def variant_of(model: str, target: str, axes: Axes) -> Variant:
    """Return the variant of a model for a target, with its name."""
    return Variant(variant_name(model, axes), target, **axes.axes)


def is_quantized(axes: Axes) -> bool:
    """Return whether a quantizer makes some of its weights or scales."""
    return axes.precision in QUANTIZED or axes.kv_precision is not KvPrecision.SAME


def pin_variants(
    variants: Iterable[Variant], placement: BenchmarkPlacement, nodes: Sequence[Node]
) -> Iterator[Variant]:
    """Yield a variant for each place where it is measured: `tiny-llama-FP16-TP1@node`, or `@node:3` for a device."""
    for variant in variants:
        if placement is BenchmarkPlacement.ANY:
            yield variant
        else:
            for pin in _pins(variant, placement, nodes):
                place = f"{pin.node}:{pin.devices[0]}" if len(pin.devices) == 1 else pin.node
                yield replace(variant, name=f"{variant.name}@{place}", pin=pin)


def _pins(variant: Variant, placement: BenchmarkPlacement, nodes: Sequence[Node]) -> Iterator[Pin]:
    able = (node for node in nodes if node.count(variant.target) >= variant.device_count)
    if placement is BenchmarkPlacement.ONE_PLACE:
        yield from (Pin(node.id, _devices(node, variant)[: variant.device_count]) for node in islice(able, 1))
    elif placement is BenchmarkPlacement.EACH_NODE:
        yield from (Pin(node.id) for node in able)
    else:
        yield from (Pin(node.id, (index,)) for node in nodes for index in _devices(node, variant))


def _devices(node: Node, variant: Variant) -> tuple[int, ...]:
    return tuple(device.index for device in node.devices if device.kind == variant.target)
