"""What makes a model's low-precision weights and scales: what each maker does, with which options, under what.

A maker's program is workers/llm/quantizers/<maker>.py, and what it writes is the layout that
workers/llm/quantized_layout.py describes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.toolchains import DEFAULT
from jobs.variants import KvPrecision, Precision, Quantizer, Variant, is_quantized

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Number:
    """An option that is a number."""

    least: float
    most: float
    is_whole: bool = False

    def allows(self, value: object) -> bool:
        """Whether an option may be so."""
        kinds = (int,) if self.is_whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a {'whole ' if self.is_whole else ''}number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Choice:
    """An option that is one of some words."""

    words: tuple[str, ...]  #: the default first
    why_not: Mapping[str, str] = field(
        default_factory=dict
    )  #: reasons against other words that a maker's program knows

    def allows(self, value: object) -> bool:
        """Whether an option may be so."""
        return value in self.words

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


@dataclass(frozen=True)
class Switch:
    """An option that is on or off; off by default."""

    def allows(self, value: object) -> bool:
        """Whether an option may be so."""
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class File:
    """An option that names a file, taken from the job file's folder."""

    def allows(self, value: object) -> bool:
        """Whether an option may be so."""
        return isinstance(value, str) and bool(value)

    def __str__(self) -> str:
        return "a file's path"


@dataclass(frozen=True)
class Offer:
    """How a maker does one precision; defaults first."""

    granularity: tuple[str, ...]  #: of the weights' scales
    inputs: tuple[str, ...] = ("static", "dynamic")  #: how inputs of linear modules are scaled; empty: not at all
    group_size: int | None = None  #: the only one that it makes


@dataclass(frozen=True)
class Maker:
    """One way to low-precision weights."""

    title: str
    offers: Mapping[Precision, Offer]
    toolchain: str = DEFAULT  #: what its program runs under, unless the variant's toolchain is for the stage quantize
    options: Mapping[str, Number | Choice | Switch | File] = field(default_factory=dict)
    needed: tuple[str, ...] = ()  #: of the options
    why_not: Mapping[str, str] = field(default_factory=dict)  #: reasons against options that its program knows
    scales_kv: bool = False  #: it makes the scales of an fp8 KV cache
    refused: str = ""  #: why it can't be used at all
    lacks: Mapping[Precision, str] = field(default_factory=dict)  #: why it has no offer for a precision


FP8, INT8, INT4 = Precision.FP8, Precision.INT8, Precision.INT4
TRACED = "Brevitas 0.13 traces the model for it, under names that its export for shark-ai does not know"
WEIGHTS_ALONE = "it quantizes weights alone, and their matmuls would not be {}"

MAKERS: dict[Quantizer, Maker] = {
    Quantizer.HALOCTL: Maker(
        "absolute largest values, or a percentile of them, over calibration text",
        {
            FP8: Offer(("tensor", "channel")),
            INT8: Offer(("channel", "tensor")),
            INT4: Offer(("group", "channel"), inputs=()),
        },
        options={
            "method": Choice(("absmax", "percentile")),  #: of inputs
            "percentile": Number(90, 100),
            "clip": Switch(),  #: weights' scales are those with the least squared error, not the largest value's
        },
        scales_kv=True,
    ),
    Quantizer.LLM_COMPRESSOR: Maker(
        "llm-compressor, vLLM's",
        {FP8: Offer(("tensor", "channel")), INT8: Offer(("channel",)), INT4: Offer(("group", "channel"), inputs=())},
        toolchain="llm-compressor-0.14",
        options={
            "method": Choice(("gptq", "rtn")),
            "smoothquant": Number(0, 1),  #: its strength
            "dampening": Number(0, 1),
        },
    ),
    Quantizer.QUARK: Maker(
        "AMD Quark",
        {FP8: Offer(("tensor", "channel"), inputs=("static",)), INT8: Offer(("channel", "tensor"), inputs=("static",))},
        toolchain="quark-0.13",
        lacks={INT4: "its int4 is not converted into haloctl's layout"},
    ),
    Quantizer.BREVITAS: Maker(
        "Brevitas' brevitas_ptq_llm, exported for shark-ai",
        {FP8: Offer(("tensor", "channel"), inputs=("static",)), INT8: Offer(("channel", "tensor"), inputs=("static",))},
        toolchain="shark-3.8",
        options={
            "gptq": Switch(),
            "gpfq": Switch(),
            "qronos": Switch(),
            "magr": Switch(),
            "awq": Choice(("scale", "clip")),
            "act_equalization": Choice(("layerwise",), {"fx": TRACED}),  #: SmoothQuant, its factors before each module
            "act_equalization_alpha": Number(0, 1),
            "bias_corr": Switch(),
            "format": Choice(("ocp", "fnuz")),  #: of fp8
        },
        why_not={
            "weight_equalization": TRACED,
            "rotation": "rotations that stay in the program have no place in haloctl's layout",
            "svd_quant": "its export for shark-ai leaves out the low-rank part",
            "learned_round": "its export for shark-ai does not support it",
        },
        lacks={INT4: "its export for shark-ai has no scales for groups"},
    ),
    Quantizer.GPTQMODEL: Maker(
        "GPTQModel",
        {INT4: Offer(("group", "channel"), inputs=())},
        toolchain="gptqmodel-7.7",
        options={"method": Choice(("gptq", "awq")), "symmetric": Switch(), "dampening": Number(0, 1)},
        lacks={FP8: WEIGHTS_ALONE.format(FP8), INT8: WEIGHTS_ALONE.format(INT8)},
    ),
    Quantizer.TORCHAO: Maker(
        "torchao",
        {INT4: Offer(("group",), inputs=())},
        toolchain="torchao-0.18",
        lacks={
            FP8: f"{WEIGHTS_ALONE.format(FP8)}; its fp8 of both needs a GPU",
            INT8: WEIGHTS_ALONE.format(INT8),
        },
    ),
    Quantizer.BITSANDBYTES: Maker(
        "bitsandbytes",
        {},
        refused="its 4-bit weights come back wrong on a CPU (perplexity 400 where 19 is right), its int8 has no static "
        "scales, and neither has a place in haloctl's layout",
    ),
    Quantizer.GGUF: Maker(
        "a GGUF file, as llama.cpp writes them",
        {FP8: Offer(("tensor", "channel")), INT8: Offer(("channel", "tensor")), INT4: Offer(("group",), (), 32)},
        toolchain="gguf-0.18",
        options={"file": File(), "method": Choice(("absmax", "percentile")), "percentile": Number(90, 100)},
        needed=("file",),
        scales_kv=True,
    ),
}


def problem(variant: Variant) -> str | None:
    """Why a variant's quantizer does not make what it is asked for, and what it does make."""
    name, maker = variant.quantizer, MAKERS[variant.quantizer]
    if not is_quantized(variant):
        return None
    if maker.refused:
        return f"the quantizer {name} can't be used: {maker.refused}"
    does = f"it makes {', '.join(maker.offers)}"
    if variant.precision not in maker.offers and variant.precision in maker.lacks:
        return f"the quantizer {name} does not make {variant.precision}: {maker.lacks[variant.precision]}; {does}"
    if variant.kv_precision is not KvPrecision.SAME and not maker.scales_kv:
        able = ", ".join(other for other, one in MAKERS.items() if one.scales_kv)
        return f"the quantizer {name} makes no scales for a KV cache in {variant.kv_precision}; {able} does"
    return None


def settings_problem(
    variants: Iterable[Variant], granularity: str | None, inputs: str | None, options: Mapping[Quantizer, Options]
) -> str | None:
    """Why the makers of some variants can't do what a job's section `quantize` asks of them."""
    for variant in variants:
        name, maker = variant.quantizer, MAKERS[variant.quantizer]
        offer = maker.offers.get(variant.precision)
        missing = [key for key in maker.needed if key not in options.get(name, {})]
        if is_quantized(variant) and missing:
            return f"options: {name} needs {missing[0]}: {maker.options[missing[0]]}"
        if offer is None or "group" in offer.granularity:
            continue
        if granularity and granularity not in offer.granularity:
            return f"granularity: {name} makes {variant.precision} with a scale a {' or '.join(offer.granularity)}"
        if inputs and inputs not in offer.inputs:
            return f"inputs: {name} makes {variant.precision} with scales that are {' or '.join(offer.inputs)}"
    return None


def option_problems(name: Quantizer, options: Options) -> Iterator[str]:
    """What of a maker's options it can't take."""
    maker = MAKERS[name]
    for key, value in options.items():
        if key in maker.why_not:
            yield f"{name}'s option {key} can't be used: {maker.why_not[key]}"
        elif key not in maker.options:
            known = f"it has {', '.join(maker.options)}" if maker.options else "it has none"
            yield f"{name} has no option {key}: {known}"
        elif not maker.options[key].allows(value):
            reason = getattr(maker.options[key], "why_not", {}).get(value)
            because = f": {reason}" if reason else ""
            yield f"{name}'s option {key} should be {maker.options[key]}, not {value!r}{because}"
