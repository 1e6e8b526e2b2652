"""The settings that variants in low precision give to their stages."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.job_file.spec import JobSpec
from jobs.stages import STAGES
from jobs.stages.base import Cell, Model
from jobs.stages.numerics import TOLERANCES, tolerance_of
from jobs.toolchains import Toolchain
from jobs.variants import KvPrecision, Precision

MODEL = Model("tiny-llama", "tiny-llama", "digest", 1000)


def cell(precision: str, target: str = "mi300x", kv_precision: str = "same", **more: Any) -> Cell:
    variants = {"precision": precision, "target": target, "kv_precision": kv_precision}
    spec = JobSpec(name="x", model="tiny-llama", variants=variants, **more)  # type: ignore[arg-type]
    (variant,) = spec.variants.of("tiny-llama")
    return Cell(spec, variant, MODEL)


def export_flags(of: Cell) -> set[str]:
    settings = STAGES["export"].settings(of)
    (command,) = STAGES["export"].commands(settings, Toolchain("default", {}))
    return set(command.argv)


@pytest.mark.parametrize("precision", ["f16", "int8", "int4"])
def test_one_export_serves_all_targets_but_those_of_another_fp8(precision: str) -> None:
    export = STAGES["export"]
    assert export.settings(cell(precision, "cpu")) == export.settings(cell(precision, "h100"))
    assert export.settings(cell("fp8", "cpu")) == export.settings(cell("fp8", "mi300x"))
    assert export.settings(cell("fp8", "mi300x")) != export.settings(cell("fp8", "mi350x"))


def test_export_is_told_the_kind_of_fp8_and_where_the_weights_are() -> None:
    assert {"--fp8=fn", "--quantized=inputs/quantize", "--precision=fp8"} <= export_flags(cell("fp8", "mi350x"))
    assert {"--fp8=fnuz", "--kv-precision=fp8"} <= export_flags(cell("f16", kv_precision="fp8"))
    assert not [flag for flag in export_flags(cell("f16")) if flag.startswith(("--fp8", "--kv", "--quantized"))]


def test_a_job_says_what_its_numerics_may_cost_or_the_precision_does() -> None:
    numerics = STAGES["numerics"]
    assert numerics.settings(cell("f16"))["max_perplexity_increase_percent"] == 1.0
    assert numerics.settings(cell("int4"))["max_perplexity_increase_percent"] == 5.0
    asked = {"max_perplexity_increase_percent": 0.5, "max_kl_mean": 0.001, "max_scale_error_percent": 2.0}
    assert asked.items() <= numerics.settings(cell("int4", numerics=asked)).items()


def test_a_cache_in_fp8_is_allowed_no_less_than_weights_in_fp8() -> None:
    both, f16, fp8 = (
        tolerance_of(Precision.F16, KvPrecision.FP8),
        TOLERANCES[Precision.F16],
        TOLERANCES[Precision.FP8],
    )
    assert (both.kl_mean, both.argmax_agreement) == (fp8.kl_mean, fp8.argmax_agreement)
    assert tolerance_of(Precision.F16) == f16
    int4 = replace(TOLERANCES[Precision.INT4], quantized_kl_mean=fp8.quantized_kl_mean)  # rounding its cache is more
    assert tolerance_of(Precision.INT4, KvPrecision.FP8) == int4
