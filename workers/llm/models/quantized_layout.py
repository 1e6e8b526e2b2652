"""The layout of a quantized model folder, which every quantizer writes and export reads.

It is that of compressed-tensors: a folder in Hugging Face layout whose config.json has a `quantization_config`, and
whose safetensors hold, for a quantized linear module X with a weight [out, in]:

    X.weight             fp8: F8_E4M3 (the "fn" kind, largest value 448); int8: I8              [out, in]
    X.weight_packed      int4: I32, eight values v + 8 each, the first in the lowest four bits   [out, in / 8]
    X.weight_shape       int4: I64, out and in                                                  [2]
    X.weight_scale       floating point   [1] per tensor, [out, 1] per channel, [out, in / group] per group
    X.weight_zero_point  int4 that is not symmetric: I32, packed as above but along the rows    [out / 8, in / group]
                         or, where `zp_dtype` is torch.float32, not rounded: F32               [out, in / group]
    X.input_scale        floating point; for static activations                                 [1]
    X.pre_quant_scale    floating point; multiplies the inputs first                             [1, in]
    X.bias               as in the original

A weight is (q - zero point) * weight_scale, an input q * input_scale. Where a config group has `pre_quant_scale: true`,
inputs are multiplied by it (ModelOpt's name for SmoothQuant's factors) before they are rounded. A KV cache in fp8 has,
for each attention module A, `A.k_scale` and `A.v_scale` [1]. All other tensors are stored as in the original, under the
same names.

Standard library only: quantizers run under toolchains of their own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workers.llm.command_line import BadInput

KEY = "quantization_config"  #: of config.json
METHOD = "compressed-tensors"
FORMATS = {"fp8": "float-quantized", "int8": "int-quantized", "int4": "pack-quantized"}
BITS = {"fp8": 8, "int8": 8, "int4": 4}
STORED = {"fp8": "F8_E4M3", "int8": "I8", "int4": "I32"}  #: safetensors' name for the type of a weight
LARGEST = {"fp8": 448.0, "int8": 127.0, "int4": 7.0}  #: the largest value that a symmetric scale maps to
PER_WORD = 8  #: int4 values in an int32
INT4_OFFSET = 8  #: a stored nibble is the value plus 8
LARGEST_GROUP = 128
ONLY_LINEAR = ("Linear",)
NOT_ROUNDED = "torch.float32"  #: `zp_dtype` of unrounded zero points
MAX_RULE, MAX_REPEATS = 500, 4  #: characters of a rule in `ignore`, and repetitions in its pattern
REPEATED_GROUP = re.compile(r"\)[*+{]")
LEFT_ALONE = ("lm_head",)  #: by default


@dataclass(frozen=True)
class QuantizationScheme:
    """The quantization of the weights and inputs of a model's linear modules."""

    precision: str  #: "fp8", "int8" or "int4"
    granularity: str  #: of weight_scale: "tensor", "channel" or "group"
    group_size: int | None = None  #: columns that share a scale
    is_symmetric: bool = True  #: no zero points
    inputs: str | None = (
        "static"  #: "static": one scale for the module; "dynamic": one for each token; None: unquantized
    )
    has_float_zero_points: bool = False  #: they are not whole numbers: groups have a minimum of their own, as in GGUF
    has_pre_quant_scale: bool = False  #: inputs are multiplied by column before they are rounded: SmoothQuant

    def tensors(self, rows: int, columns: int) -> dict[str, tuple[str | None, tuple[int, ...]]]:
        """Return dtype and shape of each tensor of a module, by suffix, for a weight [rows, columns].

        The dtype None stands for any floating-point one.
        """
        groups = columns // self.group_size if self.group_size else 1
        scales = {"tensor": (1,), "channel": (rows, 1), "group": (rows, groups)}[self.granularity]
        tensors: dict[str, tuple[str | None, tuple[int, ...]]] = {}
        if self.precision == "int4":
            tensors["weight_packed"] = ("I32", (rows, columns // PER_WORD))
            tensors["weight_shape"] = ("I64", (2,))
        else:
            tensors["weight"] = (STORED[self.precision], (rows, columns))
        tensors["weight_scale"] = (None, scales)
        if self.has_float_zero_points:
            tensors["weight_zero_point"] = (None, (rows, groups))
        elif not self.is_symmetric:
            tensors["weight_zero_point"] = ("I32", (rows // PER_WORD, groups))
        if self.inputs == "static":
            tensors["input_scale"] = (None, (1,))
        if self.has_pre_quant_scale:
            tensors["pre_quant_scale"] = (None, (1, columns))
        return tensors


@dataclass(frozen=True)
class QuantizedLayout:
    """Which parts of a model are quantized, and how."""

    scheme: QuantizationScheme | None  #: None: only the KV cache is
    ignored: tuple[str, ...] = LEFT_ALONE  #: full names of linear modules, or re:PATTERN
    has_fp8_kv_cache: bool = False

    def scheme_of(self, module: str) -> QuantizationScheme | None:
        """Return the scheme of a linear module by its full name; None for one that is not quantized."""
        return None if any(_matches(module, rule) for rule in self.ignored) else self.scheme


def _matches(module: str, rule: str) -> bool:
    return bool(re.match(rule.removeprefix("re:"), module)) if rule.startswith("re:") else module == rule


def default_layout(precision: str | None, kv_is_fp8: bool = False, columns: Sequence[int] = ()) -> QuantizedLayout:
    """Return haloctl's default layout for a precision and weights of these widths, which int4 groups must divide.

    fp8: one scale for a weight, static inputs. int8: one scale for each row, static inputs. int4: groups.
    """
    schemes = {
        None: None,
        "fp8": QuantizationScheme("fp8", "tensor"),
        "int8": QuantizationScheme("int8", "channel"),
        "int4": QuantizationScheme("int4", "group", largest_group(columns), inputs=None),
    }
    return QuantizedLayout(schemes[precision], has_fp8_kv_cache=kv_is_fp8)


def largest_group(columns: Sequence[int]) -> int:
    """Return the largest power of two, up to 128, that divides all widths."""
    group = LARGEST_GROUP
    while any(width % group for width in columns):
        group //= 2
    return group


def quantization_config(layout: QuantizedLayout) -> dict[str, Any]:
    """Return the `quantization_config` of a layout, as compressed-tensors writes it."""
    scheme = layout.scheme
    groups: dict[str, Any] = {}
    if scheme:
        kind, bits = ("float" if scheme.precision == "fp8" else "int"), BITS[scheme.precision]
        weights = _args(kind, bits, scheme.granularity, scheme.is_symmetric, group_size=scheme.group_size)
        weights |= {"zp_dtype": NOT_ROUNDED} if scheme.has_float_zero_points else {}
        is_dynamic = scheme.inputs == "dynamic"
        inputs = _args(kind, bits, "token" if is_dynamic else "tensor", dynamic=is_dynamic) if scheme.inputs else None
        groups["group_0"] = {
            "targets": list(ONLY_LINEAR),
            "weights": weights,
            "input_activations": inputs,
            "output_activations": None,
            **({"pre_quant_scale": True} if scheme.has_pre_quant_scale else {}),
        }
    return {
        "quant_method": METHOD,
        "quantization_status": "compressed",
        "format": FORMATS[scheme.precision] if scheme else "dense",
        "config_groups": groups,
        "ignore": list(layout.ignored),
        "kv_cache_scheme": _args("float", 8, "tensor") if layout.has_fp8_kv_cache else None,
    }


def _args(
    kind: str, bits: int, strategy: str, symmetric: bool = True, dynamic: bool = False, group_size: int | None = None
) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group_size,
        "dynamic": dynamic,
    }


def read_layout(config: Mapping[str, Any], where: object) -> QuantizedLayout | None:
    """Return the layout in the contents of a config.json; None when the model is not quantized.

    Raises BadInput, which names `where`, for a layout that is not supported.
    """
    section = config.get(KEY)
    if section is None:
        return None
    try:
        return _read(section)
    except _Unsupported as problem:
        raise BadInput(f"{where}: the {KEY} is not supported: {problem}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        detail = f"{type(problem).__name__}: {problem}"
        raise BadInput(f"{where}: the {KEY} is not as {METHOD} writes it ({detail})") from None


class _Unsupported(Exception):
    """A valid layout that is not supported."""


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise _Unsupported(problem)


def _expect_rule(rule: Any) -> None:
    """Refuse a rule that is no name and no simple pattern; others could take for ever to match."""
    _expect(
        isinstance(rule, str) and len(rule) <= MAX_RULE, f"ignore has {str(rule)[:40]!r}, which is no name of modules"
    )
    if not rule.startswith("re:"):
        return
    is_simple = not REPEATED_GROUP.search(rule) and sum(map(rule.count, "*+{")) <= MAX_REPEATS
    _expect(is_simple, f"ignore has a pattern that repeats too much: {rule[:40]!r}")
    try:
        re.compile(rule.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        raise _Unsupported(f"ignore has {rule[:40]!r}, which is no regular expression: {error}") from None


def _read(section: Mapping[str, Any]) -> QuantizedLayout:
    method, file_format = section.get("quant_method"), section.get("format")
    _expect(method == METHOD, f"quant_method is {method}, only {METHOD} is read: requantize or convert the model")
    for rule in section.get("ignore") or ():
        _expect_rule(rule)
    groups, ignored = list(section["config_groups"].values()), tuple(section.get("ignore") or ())
    cache = section.get("kv_cache_scheme")
    if cache:
        is_plain = (cache["type"], cache["num_bits"], cache.get("strategy", "tensor")) == ("float", 8, "tensor")
        _expect(is_plain, "kv_cache_scheme must be fp8 with one scale for each tensor")
        _expect(not cache.get("dynamic") and cache.get("symmetric", True), "kv_cache_scheme must be static, symmetric")
    if not groups:
        return QuantizedLayout(None, ignored, bool(cache))
    _expect(len(groups) == 1, f"{len(groups)} config_groups: one scheme for all linear modules is needed")
    (group,) = groups
    targets = group["targets"]
    _expect(tuple(targets) == ONLY_LINEAR, f"targets are {targets}, only {list(ONLY_LINEAR)} is read")
    scheme = _read_scheme(group["weights"], group.get("input_activations"))
    scheme = replace(scheme, has_pre_quant_scale=bool(group.get("pre_quant_scale")))
    file_format = group.get("format") or file_format
    _expect(
        file_format in (FORMATS[scheme.precision], "naive-quantized"),
        f"format {file_format} does not suit {scheme.precision} weights",
    )
    return QuantizedLayout(scheme, ignored, bool(cache))


def _read_scheme(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> QuantizationScheme:
    kinds = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
    kind = (weights["type"], weights["num_bits"])
    _expect(kind in kinds, f"weights are {kind[0]} of {kind[1]} bits; known are {', '.join(kinds.values())}")
    precision, granularity = kinds[kind], weights["strategy"]
    known = ("group", "channel") if precision == "int4" else ("tensor", "channel")
    _expect(
        granularity in known, f"{precision} weights have one scale per {granularity}; supported are {', '.join(known)}"
    )
    is_symmetric = weights.get("symmetric", True)
    _expect(is_symmetric or precision == "int4", f"{precision} weights have zero points; they must be symmetric")
    _expect(weights.get("actorder") in (None, "weight", "static"), "weights are grouped by activation order (g_idx)")
    group_size = int(weights["group_size"]) if granularity == "group" else None
    _expect(group_size is None or group_size >= 1, f"groups have {group_size} columns")
    has_floats = not is_symmetric and weights.get("zp_dtype") == NOT_ROUNDED
    return QuantizationScheme(
        precision, granularity, group_size, is_symmetric, _read_inputs(precision, inputs), has_floats
    )


def _read_inputs(precision: str, inputs: Mapping[str, Any] | None) -> str | None:
    if inputs is None:
        _expect(
            precision == "int4", f"{precision} weights with unquantized inputs: their matmuls would not be {precision}"
        )
        return None
    same = {"fp8": ("float", 8), "int8": ("int", 8)}.get(precision)
    _expect((inputs["type"], inputs["num_bits"]) == same, f"inputs are not {precision} as the weights are")
    _expect(inputs.get("symmetric", True), "inputs have zero points; they must be symmetric")
    strategy, is_dynamic = inputs["strategy"], bool(inputs.get("dynamic"))
    _expect(
        strategy == ("token" if is_dynamic else "tensor"),
        f"inputs have one scale per {strategy}, dynamic: {is_dynamic}",
    )
    return "dynamic" if is_dynamic else "static"
