"""A node is told apart from the head by what is installed on it, and the differences are named."""

from dataclasses import replace

from jobs.toolchains import Toolchain
from orchestrator.ray_executor.version_skew import explain_skew

HEADS = Toolchain("default", {"torch": "2.9.0", "safetensors": "0.8.0"}, "x86-64 a", "0" * 64)


def test_the_same_packages_and_programs_on_another_processor_are_the_same() -> None:
    assert explain_skew(HEADS, replace(HEADS, host_cpu="x86-64 b")) is None


def test_other_and_missing_packages_and_programs_are_named() -> None:
    told = explain_skew(HEADS, replace(HEADS, versions={"torch": "2.8.0"}, programs="1" * 64))
    assert told == (
        "install what the head has: safetensors is missing, not 0.8.0, torch is 2.8.0, not 2.9.0, "
        "haloctl's stage programs are another version's"
    )
