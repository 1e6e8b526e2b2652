"""Finding the first bad toolchain among releases that are made here in no time: 9.1, 9.2 and so on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import toolchain_wheels
from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Done, Haloctl, opened
from tests.acceptance.job_specs import EVERYTHING

#: A compiler that takes longer from 9.2 on, makes more from 9.5 on, and fails from 9.7 on. There is no 9.4.
COMPILER = """
import sys, time

def main():
    if "-o" not in sys.argv:
        return
    time.sleep({sleep_s})
    open(sys.argv[sys.argv.index("-o") + 1], "w").write("x" * {size})
    sys.exit({fails} and "model.mlir:7:3: error: it is 9.{minor}")
"""
MISSING = 4
TP2 = "tiny-llama-FP16-TP2"


@dataclass(frozen=True)
class World:
    """A haloctl with finished exports, and its job."""

    haloctl: Haloctl
    job: str

    def bisect(self, when: str, *minors: int) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """The answer, and the toolchains that were looked at with their verdicts."""
        result = self.haloctl.json("bisect", self.job, *self.over(*minors), "--when", when)
        return result, [(probe["toolchain"], probe["verdict"]) for probe in result["probes"]]

    def over(self, *minors: int) -> tuple[str, ...]:
        return "--toolchains", ",".join(f"iree-9.{minor}" for minor in minors), "--variant", TP2


@pytest.fixture(scope="module")
def world(temporary: Path, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bisect")
    wheels = folder / "wheels"
    for minor in set(range(1, 10)) - {MISSING}:
        module = COMPILER.format(
            sleep_s=2 * (minor == 2), size=1000 if minor < 5 else 1500, fails=minor >= 7, minor=minor
        )
        scripts = {"iree-compile": "a_compiler:main"}
        toolchain_wheels.wheel(wheels, "iree-base-compiler", f"9.{minor}.0", {"a_compiler.py": module}, scripts=scripts)
        toolchain_wheels.wheel(wheels, "iree-base-runtime", f"9.{minor}.0")
    variables = toolchain_wheels.variables(wheels)
    with opened(folder, temporary, filled.haloctl.data, **variables) as haloctl:
        variants = {**EVERYTHING["variants"], "target": "cpu"}
        yield World(haloctl, haloctl.job(**{**EVERYTHING, "variants": variants}))


def test_the_first_that_fails_is_found_past_one_that_cannot_be_had_and_is_known_when_asked_again(world: World) -> None:
    result, asked = world.bisect("compile fails", *range(1, 9))
    good, bad, skip = "good", "bad", "skip"
    assert asked == [("iree-9.1", good), ("iree-9.8", bad), ("iree-9.4", skip), ("iree-9.5", good), ("iree-9.6", good),
                     ("iree-9.7", bad)]  # fmt: skip
    assert (result["first_bad"], result["last_good"], result["problem"]) == ("iree-9.7", "iree-9.6", "")
    assert "error: it is 9.7" in result["probes"][-1]["why"]
    assert "9.4" in result["probes"][2]["why"]
    tasks = world.haloctl.json("show", result["probes"][0]["jobs"][0])["tasks"]
    assert [(task["stage"], task["state"]) for task in tasks] == [("export", "cached"), ("compile", "succeeded")]

    jobs = len(world.haloctl.json("list"))
    again = world.haloctl.run("bisect", world.job, *world.over(*range(1, 9)), "--when", "compile fails")
    assert again.out.splitlines()[-1] == "iree-9.7 is the first bad one; iree-9.6 is the last good one"
    assert len(world.haloctl.json("list")) == jobs + 1  # what could not be judged is tried again


def test_what_follows_from_the_computation_takes_one_look_at_each(world: World) -> None:
    result, asked = world.bisect("vmfb_bytes worse by 10%", 1, 2, 3, 5, 6)
    assert (result["first_bad"], len(asked)) == ("iree-9.5", 4)
    assert all(len(probe["jobs"]) == 1 for probe in result["probes"])
    assert "50.0% worse" in result["probes"][-1]["why"]


def test_a_comparison_may_measure_both_anew(world: World) -> None:
    """A figure that follows from the computation is decided by one run of each side, in one place."""
    sides = ("toolchain:iree-9.1", "toolchain:iree-9.5")
    before = len(world.haloctl.json("list"))
    (row,) = world.haloctl.json("compare", *sides, "--metric", "vmfb_bytes", "--run")
    assert (row["verdict"], row["ratio"], row["old_runs"], row["new_runs"]) == ("worse", 1.5, 1, 1)
    assert (row["old_variant"], row["new_variant"]) == (f"{TP2}-iree-9.1", f"{TP2}-iree-9.5")
    jobs = world.haloctl.json("list")[: len(world.haloctl.json("list")) - before]
    assert [job["name"] for job in jobs] == [
        f"compare {TP2}-iree-9.{minor} (toolchain:iree-9.{minor})" for minor in (5, 1)
    ]
    for job in jobs:
        states = {task["stage"]: task["state"] for task in world.haloctl.json("show", job["job"])["tasks"]}
        assert states == {"export": "cached", "compile": "succeeded"}


def test_timings_are_taken_in_turns_until_they_decide(world: World) -> None:
    result, asked = world.bisect("compile_s worse by 10%", 1, 2)
    assert asked == [("iree-9.1", "good"), ("iree-9.2", "bad")]
    jobs = result["probes"][-1]["jobs"]
    assert len(jobs) >= 4
    compiled = [
        [
            (task["toolchain"], task["state"])
            for task in world.haloctl.json("show", job)["tasks"]
            if task["stage"] == "compile"
        ]
        for job in jobs[:2]
    ]
    older, newer = ("iree-9.1", "succeeded"), ("iree-9.2", "succeeded")
    assert compiled == [[older, newer], [newer, older]]


def expect(done: Done, code: int, *phrases: str) -> None:
    assert done.code == code, done.err
    assert [phrase for phrase in phrases if phrase not in done.err] == []


def test_what_makes_no_sense_is_told_in_words(world: World) -> None:
    bisect = ("bisect", world.job)
    expect(
        world.haloctl.run(*bisect, *world.over(7, 8), "--when", "compile fails"),
        5, "iree-9.7 should be good, and is bad", "name an older one",
    )  # fmt: skip
    expect(world.haloctl.run(*bisect, "--good", "iree-9.1", "--when", "compile fails"), 2, "--good, --bad")
    expect(
        world.haloctl.run(*bisect, "--good", "iree-9.1", "--bad", "iree-compiler-9.2", "--when", "compile fails"),
        2, "not releases of one family", "--toolchains a,b,c",
    )  # fmt: skip
    expect(world.haloctl.run(*bisect, "--toolchains", "iree-9.1", "--when", "compile fails"), 2, "two or more")
    expect(world.haloctl.run(*bisect, *world.over(1, 2), "--when", "it is slow"), 2, "--when", "compile fails")
    expect(
        world.haloctl.run(*bisect, "--toolchains", "a,b", "--when", "compile fails"),
        2, "a",
    )  # fmt: skip
