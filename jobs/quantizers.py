"""The table of quantizers: what each makes, with which options, under which toolchain.

A quantizer's program is workers/llm/quantizers/<name>.py; its output has the layout that
workers/llm/models/quantized_layout.py describes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.input_files import InputFile
from jobs.problems import Problem
from jobs.toolchains import DEFAULT
from jobs.variants import HALOCTL, KvPrecision, Precision, Variant, is_quantized

Options = Mapping[str, Any]


@dataclass(frozen=True)
class NumberOption:
    """An option whose value is a number."""

    least: float
    most: float
    is_whole: bool = False

    def allows(self, value: object) -> bool:
        """Return whether the option can have this value."""
        kinds = (int,) if self.is_whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a {'whole ' if self.is_whole else ''}number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class ChoiceOption:
    """An option whose value is one of some words."""

    words: tuple[str, ...]  #: the default first
    unsupported: Mapping[str, str] = field(default_factory=dict)  #: other words of the program, with why they are out

    def allows(self, value: object) -> bool:
        """Return whether the option can have this value."""
        return value in self.words

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


@dataclass(frozen=True)
class FlagOption:
    """An option that is on or off; off by default."""

    def allows(self, value: object) -> bool:
        """Return whether the option can have this value."""
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class FileOption:
    """An option that names a file, relative to the job file's folder."""

    def allows(self, value: object) -> bool:
        """Return whether the option can have this value."""
        return bool(value.path if isinstance(value, InputFile) else isinstance(value, str) and value)

    def __str__(self) -> str:
        return "a file's path"


@dataclass(frozen=True)
class Scheme:
    """How a quantizer makes one precision; defaults first."""

    granularity: tuple[str, ...]  #: what shares one scale of the weights: a tensor, a channel or a group
    inputs: tuple[str, ...] = ("static", "dynamic")  #: how inputs of linear modules are scaled; empty: not at all
    group_size: int | None = None  #: the only group size that it makes


@dataclass(frozen=True)
class Quantizer:
    """What makes low-precision weights and scales of a model."""

    title: str
    schemes: Mapping[Precision, Scheme]
    toolchain: str = DEFAULT  #: what its program runs under, unless the variant's toolchain is for the stage quantize
    package: str = ""  #: with which `<name>-<release>` are toolchains; empty: there are none
    has_wheels: bool = True  #: the package index has wheels of its package, so that nothing is built
    options: Mapping[str, NumberOption | ChoiceOption | FlagOption | FileOption] = field(default_factory=dict)
    required: tuple[str, ...] = ()  #: options that must be given
    unsupported: Mapping[str, str] = field(default_factory=dict)  #: other options of its program, with why they are out
    has_kv_scales: bool = False  #: it makes the scales of an fp8 KV cache
    unusable: str = ""  #: why it can't be used at all
    unsupported_precisions: Mapping[Precision, str] = field(default_factory=dict)  #: why it has no scheme for one


FP8, INT8, INT4 = Precision.FP8, Precision.INT8, Precision.INT4
TRACED = "Brevitas 0.13 traces the model for it, under names that its export for shark-ai does not know"
WEIGHTS_ONLY = "it quantizes weights only, so matmuls would not be in {}"

QUANTIZERS: dict[str, Quantizer] = {
    HALOCTL: Quantizer(
        "absolute maxima, or a percentile of them, over calibration text",
        {
            FP8: Scheme(("tensor", "channel")),
            INT8: Scheme(("channel", "tensor")),
            INT4: Scheme(("group", "channel"), inputs=()),
        },
        options={
            "method": ChoiceOption(("absmax", "percentile")),  #: of the inputs' scales
            "percentile": NumberOption(90, 100),
            "clip": FlagOption(),  #: weights' scales minimize the squared error instead of covering the largest value
        },
        has_kv_scales=True,
    ),
    "llm-compressor": Quantizer(
        "vLLM's llm-compressor",
        {FP8: Scheme(("tensor", "channel")), INT8: Scheme(("channel",)), INT4: Scheme(("group", "channel"), inputs=())},
        toolchain="llm-compressor-0.14",
        package="llmcompressor",
        options={
            "method": ChoiceOption(("gptq", "rtn")),
            "smoothquant": NumberOption(0, 1),  #: its strength
            "dampening": NumberOption(0, 1),
        },
    ),
    "quark": Quantizer(
        "AMD Quark",
        {
            FP8: Scheme(("tensor", "channel"), inputs=("static",)),
            INT8: Scheme(("channel", "tensor"), inputs=("static",)),
        },
        toolchain="quark-0.13",
        package="amd-quark",
        unsupported_precisions={INT4: "its int4 is not converted into haloctl's layout"},
    ),
    "brevitas": Quantizer(
        "Brevitas' brevitas_ptq_llm, exported for shark-ai",
        {
            FP8: Scheme(("tensor", "channel"), inputs=("static",)),
            INT8: Scheme(("channel", "tensor"), inputs=("static",)),
        },
        toolchain="shark-3.8",
        options={
            "gptq": FlagOption(),
            "gpfq": FlagOption(),
            "qronos": FlagOption(),
            "magr": FlagOption(),
            "awq": ChoiceOption(("scale", "clip")),
            "act_equalization": ChoiceOption(
                ("layerwise",), {"fx": TRACED}
            ),  #: SmoothQuant, its factors before each module
            "act_equalization_alpha": NumberOption(0, 1),
            "bias_corr": FlagOption(),
            "format": ChoiceOption(("ocp", "fnuz")),  #: of fp8
        },
        unsupported={
            "weight_equalization": TRACED,
            "rotation": "haloctl's layout has no place for rotations that stay in the program",
            "svd_quant": "its export for shark-ai leaves out the low-rank part",
            "learned_round": "its export for shark-ai does not support it",
        },
        unsupported_precisions={INT4: "its export for shark-ai has no scales for groups"},
    ),
    "gptqmodel": Quantizer(
        "GPTQModel",
        {INT4: Scheme(("group", "channel"), inputs=())},
        toolchain="gptqmodel-7.7",
        package="gptqmodel",
        has_wheels=False,
        options={"method": ChoiceOption(("gptq", "awq")), "symmetric": FlagOption(), "dampening": NumberOption(0, 1)},
        unsupported_precisions={FP8: WEIGHTS_ONLY.format(FP8), INT8: WEIGHTS_ONLY.format(INT8)},
    ),
    "torchao": Quantizer(
        "torchao",
        {INT4: Scheme(("group",), inputs=())},
        toolchain="torchao-0.18",
        package="torchao",
        unsupported_precisions={
            FP8: f"{WEIGHTS_ONLY.format(FP8)}; its fp8 of both needs a GPU",
            INT8: WEIGHTS_ONLY.format(INT8),
        },
    ),
    "bitsandbytes": Quantizer(
        "bitsandbytes",
        {},
        unusable="its 4-bit weights are wrong on a CPU (perplexity 400 instead of 19), its int8 has no static scales, "
        "and haloctl's layout has no place for either",
    ),
    "gguf": Quantizer(
        "a GGUF file of llama.cpp",
        {FP8: Scheme(("tensor", "channel")), INT8: Scheme(("channel", "tensor")), INT4: Scheme(("group",), (), 32)},
        toolchain="gguf-0.18",
        package="gguf",
        options={
            "file": FileOption(),
            "method": ChoiceOption(("absmax", "percentile")),
            "percentile": NumberOption(90, 100),
        },
        required=("file",),
        has_kv_scales=True,
    ),
}


def variant_problem(variant: Variant) -> Problem | None:
    """Return why a variant's quantizer can't make its precisions."""
    if not is_quantized(variant):
        return None
    name, quantizer, precision = variant.quantizer, QUANTIZERS[variant.quantizer], variant.precision
    if quantizer.unusable:
        return Problem.of_variant(
            variant, "quantizer", message=f"the quantizer {name} can't be used: {quantizer.unusable}"
        )
    if precision not in quantizer.schemes and precision in quantizer.unsupported_precisions:
        reason, able = quantizer.unsupported_precisions[precision], ", ".join(quantizer.schemes)
        message = f"the quantizer {name} does not make {precision}: {reason}; it makes {able}"
        return Problem.of_variant(variant, "quantizer", "precision", message=message)
    if variant.kv_precision is not KvPrecision.SAME and not quantizer.has_kv_scales:
        able = ", ".join(other for other, row in QUANTIZERS.items() if row.has_kv_scales)
        message = f"the quantizer {name} makes no scales for a KV cache in {variant.kv_precision}; these do: {able}"
        return Problem.of_variant(variant, "quantizer", "kv_precision", message=message)
    return None


def section_problem(
    variants: Iterable[Variant], granularity: str | None, inputs: str | None, options: Mapping[str, Options]
) -> Problem | None:
    """Return why the quantizers of some variants can't do what the job file's section `quantize` says."""
    for variant in variants:
        name, quantizer, precision = variant.quantizer, QUANTIZERS[variant.quantizer], variant.precision
        scheme = quantizer.schemes.get(precision)
        missing = [key for key in quantizer.required if key not in options.get(name, {})]
        if is_quantized(variant) and missing:
            keys = (("quantize", "options", name), ("quantize", "options"), ("quantize",), ("variants", "quantizer"))
            return Problem(f"{name} needs the option {missing[0]}: {quantizer.options[missing[0]]}", keys)
        if scheme is None or "group" in scheme.granularity:
            continue
        if granularity and granularity not in scheme.granularity:
            message = f"{name} makes {precision} with one scale per {' or '.join(scheme.granularity)}"
            return Problem.at("quantize", "granularity", message=message)
        if inputs and inputs not in scheme.inputs:
            message = f"{name} makes {precision} with {' or '.join(scheme.inputs)} scales"
            return Problem.at("quantize", "inputs", message=message)
    return None


def option_problems(name: str, options: Options) -> Iterator[Problem]:
    """Yield the options that a quantizer does not have or whose value it does not allow."""
    quantizer = QUANTIZERS[name]
    for key, value in options.items():
        at = ("quantize", "options", name, key)
        if key in quantizer.unsupported:
            yield Problem.at(*at, message=f"{name} can't be used with {key}: {quantizer.unsupported[key]}")
        elif key not in quantizer.options:
            known = f"it has {', '.join(quantizer.options)}" if quantizer.options else "it has none"
            yield Problem.at(*at, message=f"{name} has no option {key}: {known}")
        elif not quantizer.options[key].allows(value):
            reason = getattr(quantizer.options[key], "unsupported", {}).get(value)
            because = f": {reason}" if reason else ""
            yield Problem.at(*at, message=f"should be {quantizer.options[key]}, not {value!r}{because}")
