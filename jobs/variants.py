"""Variants: one model in one precision, one parallelism, one attention kernel, for one target."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

from jobs.models import safe_name
from jobs.task import Node, Pin


class Precision(StrEnum):
    """What weights, activations and KV cache are held in."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"


class Attention(StrEnum):
    """How attention is written into the program."""

    SDPA = "sdpa"  #: one fused operation
    EAGER = "eager"  #: matmul, softmax, matmul: "decomposed" on trackers


class Engine(StrEnum):
    """What runs the model."""

    IREE = "iree"  #: compiled into one program for all devices of one node
    TORCH = "torch"  #: transformers, a process for each device, on one node or several


class On(StrEnum):
    """Where a benchmark is run."""

    ANY = "any"  #: once, wherever there is room
    EACH_NODE = "each_node"  #: on every node that has the devices, to find the slow one
    EACH_DEVICE = "each_device"  #: on every device of the target's kind


PRECISION_NAMES = {Precision.F32: "FP32", Precision.F16: "FP16", Precision.BF16: "BF16"}
ATTENTION_NAMES = {Attention.SDPA: "", Attention.EAGER: "-decomposed"}
ENGINE_NAMES = {Engine.IREE: "", Engine.TORCH: "-torch"}
OVERRIDE_NAMES = {"num_hidden_layers": "L"}


@dataclass(frozen=True, order=True)
class Variant:
    """One row of the matrix; the target is a column of its own."""

    name: str
    target: str
    precision: Precision
    tp: int
    attention: Attention
    engine: Engine = Engine.IREE
    nodes: int = 1  #: that its devices are spread over, the same number on each
    pin: Pin | None = None  #: where alone it is measured

    @property
    def unpinned_name(self) -> str:
        """Its name without the place where it is measured."""
        return self.name.partition("@")[0]


def model_name(name: str, overrides: Mapping[str, Any]) -> str:
    """A model's name with what was overridden: `llama3.1-70B-L4`."""
    parts = (
        f"-{OVERRIDE_NAMES[key]}{value}" if key in OVERRIDE_NAMES else f"-{safe_name(f'{key}_{value}')}"
        for key, value in sorted(overrides.items())
    )
    return name + "".join(parts)


def variant_name(
    model: str, precision: Precision, attention: Attention, tp: int, engine: Engine = Engine.IREE, nodes: int = 1
) -> str:
    """The name that trackers use: `llama3.1-70B-FP16-decomposed-TP8`, and `-2N-torch` where it is of torch's ranks."""
    spread = f"-{nodes}N" if nodes > 1 else ""
    return f"{model}-{PRECISION_NAMES[precision]}{ATTENTION_NAMES[attention]}-TP{tp}{spread}{ENGINE_NAMES[engine]}"


def expand(
    model: str,
    precisions: Iterable[Precision],
    attentions: Iterable[Attention],
    tps: Iterable[int],
    targets: Iterable[str],
    exclude: Iterable[Mapping[str, Any]] = (),
    engines: Iterable[Engine] = (Engine.IREE,),
    nodes: Iterable[int] = (1,),
) -> list[Variant]:
    """Multiply everything out, in the order given, without what agrees with all keys of an exclusion."""
    exclude = list(exclude)
    variants = (
        Variant(
            variant_name(model, precision, attention, tp, engine, count),
            target,
            precision,
            tp,
            attention,
            engine,
            count,
        )
        for target, precision, attention, tp, engine, count in product(
            targets, precisions, attentions, tps, engines, nodes
        )
    )
    return [
        variant
        for variant in variants
        if not any(all(getattr(variant, key) == value for key, value in rule.items()) for rule in exclude)
    ]


def spread(variants: Iterable[Variant], on: On, nodes: Sequence[Node]) -> list[Variant]:
    """A variant for each place where it is to be measured: `tiny-llama-FP16-TP1@node`, or `@node:3` for a device."""
    return [
        found
        for variant in variants
        for found in ([variant] if on is On.ANY else [_pinned(variant, pin) for pin in _pins(variant, on, nodes)])
    ]


def _pinned(variant: Variant, pin: Pin) -> Variant:
    place = pin.node if pin.device is None else f"{pin.node}:{pin.device}"
    return replace(variant, name=f"{variant.name}@{place}", pin=pin)


def _pins(variant: Variant, on: On, nodes: Sequence[Node]) -> Iterator[Pin]:
    for node in nodes:
        if on is On.EACH_DEVICE:
            yield from (Pin(node.id, device.index) for device in node.devices if device.kind == variant.target)
        elif node.count(variant.target) >= variant.tp:
            yield Pin(node.id)
