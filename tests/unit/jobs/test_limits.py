"""What one job may ask for is bounded before anything is expanded."""

from typing import Any

import pytest
from pydantic import ValidationError

from jobs.errors import TooManyCommands
from jobs.exporters import commands_of
from jobs.job_file.job_checks import job_problem
from jobs.limits import MAX_CELLS
from jobs.models import HUB_ID
from jobs.plan import plan
from jobs.toolchain_table import TOOLCHAINS
from jobs.variants import model_name
from tests.stored_jobs import TINY, TOOLCHAIN, spec_of

MANY = list(range(1, 65))


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"variants": {"tp": MANY, "pp": MANY, "nodes": MANY}}, ("variants",), f"at most {MAX_CELLS}"),
        ({"model": [f"./m{n}" for n in range(60)], "variants": {"tp": MANY}}, ("variants",), "60 models"),
        ({"workload": {"batch": MANY, "prompt_tokens": MANY}}, ("workload", "batch"), "4096 workloads"),
        ({"benchmark": {"processes": 1000}}, ("benchmark", "processes"), "3000 processes of one benchmark"),
        (
            {"benchmark": {"processes": 400}, "variants": {"tp": MANY, "target": ["cpu", "mi300x"]}},
            ("benchmark", "processes"),
            "processes of all benchmarks",
        ),
        (
            {"benchmark": {"processes": 500, "repetitions": 9999}},
            ("benchmark", "repetitions"),
            "5000000 repetitions of one benchmark",
        ),
        (
            {"workload": {"new_tokens": 1 << 24}},
            ("workload", "new_tokens"),
            "steps of one benchmark",
        ),
        (
            {"variants": {"tp": 64, "pp": 64, "exporter": "sharktank"}},
            ("variants", "tp"),
            "4096 devices are more than 512",
        ),
    ],
)
def test_a_product_of_counts_is_refused_with_its_key(
    changes: dict[str, Any], key: tuple[str, ...], reason: str
) -> None:
    problem = job_problem(spec_of(**changes), TOOLCHAINS)
    assert problem is not None
    assert key in problem.keys
    assert reason in problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {"benchmark": {"processes": 10**9}},
        {"benchmark": {"repetitions": 10**9}},
        {"benchmark": {"warmup": 10**9}},
        {"benchmark": {"generations": 10**9}},
        {"workload": {"batch": 10**9}},
        {"workload": {"prompt_tokens": list(range(1, 1000))}},
        {"numerics": {"windows": 10**9}},
        {"numerics": {"max_kl_mean": float("inf")}},
        {"quantize": {"tokens": 10**9}},
        {"variants": {"nodes": 10**9}},
        {"variants": {"exclude": [{"tp": 1}] * 201}},
        {"compile": {"flags": ["--iree-opt-level=O3"] * 300}},
        {"timeout": float("inf")},
        {"timeout": "9" * 400 + "h"},
        {"job_timeout": "99999999h"},
        {"overrides": {"x": float("nan")}},
        {"overrides": {"x": [{"y": 10**400}]}},
        {"overrides": {"x": "y" * 5000}},
        {"overrides": {f"x{n}": "y" * 1000 for n in range(100)}},
        {"overrides": {"a=b": 1}},
        {"model": ["x/y"] * 65},
        {"model": "x" * 5000},
    ],
)
def test_a_count_or_a_text_is_bounded_by_itself(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec_of(**changes)


def test_what_people_submit_is_within_the_limits() -> None:
    wide = {"precision": ["f16", "fp8", "int8", "int4"], "tp": [1, 2, 4, 8], "target": ["mi300x", "mi325x"]}
    workload = {"batch": [1, 2, 4, 8, 16, 32, 64], "prompt_tokens": [128, 512, 2048, 8192], "new_tokens": 256}
    spec = spec_of(variants=wide, workload=workload, benchmark={"processes": 10})
    assert job_problem(spec, TOOLCHAINS) is None


def test_commands_are_counted_before_they_are_made() -> None:
    for engine in ("iree", "torch"):
        made = plan(spec_of(variants={"engine": engine}, benchmark={"processes": 2}), TINY)
        task = next(task for task in made.tasks if task.stage == "benchmark")
        assert len(commands_of("benchmark", task.settings, TOOLCHAIN)) == (2 if engine == "torch" else 6)
        with pytest.raises(TooManyCommands, match="commands, more than 2000"):
            commands_of("benchmark", {**task.settings, "processes": 10**9}, TOOLCHAIN)


@pytest.mark.parametrize(
    "text", ["x/..", "../..", "--/--", ".x/y", "x/y.", "a/b--c", "a/" + "b" * 100, "x/y/z", "x/y\n"]
)
def test_what_no_hub_would_take_is_no_hub_id(text: str) -> None:
    assert not HUB_ID.fullmatch(text)


@pytest.mark.parametrize("text", ["meta-llama/Llama-3.1-8B", "a/b", "Qwen/Qwen2.5-0.5B_x"])
def test_hub_ids_are_those_of_the_hub(text: str) -> None:
    assert HUB_ID.fullmatch(text)


def test_overrides_that_are_long_are_a_digest_in_a_models_name() -> None:
    long = model_name("m", {"rope_parameters": {"factor": 8.0, "names": ["x" * 100]}})
    assert len(long) < 60
    assert long != model_name("m", {"rope_parameters": {"factor": 8.0, "names": ["y" * 100]}})
    assert model_name("m", {"num_hidden_layers": 4, "rope_theta": 5}) == "m-L4-rope_theta_5"
