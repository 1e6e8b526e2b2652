"""Toolchains as users have them: several in one job, of which one can't be had."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import toolchain_wheels
from tests.acceptance.haloctl import Done, Haloctl, opened
from tests.acceptance.job_specs import ONE_EXPORT

MISSING = "iree-base-compiler==9.9"


def under(*toolchains: str) -> dict[str, object]:
    """A job with a compile under each toolchain, of one export."""
    variants = {"precision": "f16", "toolchain": list(toolchains)}
    return {**ONE_EXPORT, "name": "toolchains", "stages": ["export", "compile"], "variants": variants}


@dataclass(frozen=True)
class Compared:
    """A haloctl that has compiled under two toolchains and could not under a third."""

    haloctl: Haloctl
    done: Done
    job: str

    def compiles(self) -> dict[str, dict[str, Any]]:
        """The compile tasks, by toolchain."""
        return compiles(self.haloctl, self.job)

    def built(self) -> dict[Path, int]:
        """The environments that are there, each with when it was built."""
        return {path: path.stat().st_mtime_ns for path in (self.haloctl.data / "toolchains").glob("*/haloctl.json")}


def compiles(haloctl: Haloctl, job: str) -> dict[str, dict[str, Any]]:
    return {task["toolchain"]: task for task in haloctl.json("show", job)["tasks"] if task["stage"] == "compile"}


@pytest.fixture(scope="module")
def compared(temporary: Path, known_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    wheels = tmp_path_factory.mktemp("wheels")
    for version in ("9.1.0", "9.2.0"):
        toolchain_wheels.iree(wheels, version)
    folder, variables = tmp_path_factory.mktemp("compared"), toolchain_wheels.variables(wheels)
    with opened(folder, temporary, known_model, **variables) as haloctl:
        done = haloctl.run("submit", haloctl.job(**under("iree-9.1", "iree-9.2", "iree-9.9")), "--wait")
        yield Compared(haloctl, done, haloctl.only_job()["job"])
        haloctl.until_gone()


def test_two_toolchains_in_one_job_stand_side_by_side_and_are_told_apart(compared: Compared) -> None:
    haloctl, job = compared.haloctl, compared.job
    states = {name: task["state"] for name, task in compared.compiles().items()}
    assert states == {"iree-9.1": "succeeded", "iree-9.2": "succeeded", "iree-9.9": "failed"}, compared.done.err
    assert [row["variant"].rpartition("-iree-")[2] for row in haloctl.json("matrix", job)] == ["9.1", "9.2", "9.9"]
    assert [row["toolchain"] for row in haloctl.json("matrix", job, "--toolchain", "*9.2")] == ["iree-9.2"]
    rows = haloctl.json("results", "--job", job, "--metric", "compile_s")
    versions = {(row["toolchain"], row["versions"]["iree-base-compiler"]) for row in rows if row["stage"] == "compile"}
    assert versions == {("iree-9.1", "9.1.0"), ("iree-9.2", "9.2.0")}
    table = haloctl.answer("results", "--job", job, "--toolchain", "iree-9.2")
    assert "iree-9.2" in table
    assert "iree-9.1" not in table
    assert len(compared.built()) == 2


def test_a_toolchain_that_can_t_be_had_fails_with_uv_s_words_and_takes_no_device(compared: Compared) -> None:
    assert compared.done.code == 3
    task = compared.compiles()["iree-9.9"]
    assert (task["failure"]["kind"], task["attempts"]) == ("toolchain", 0)
    assert MISSING in task["failure"]["message"]
    for command in ("show", "why"):
        assert MISSING in compared.haloctl.answer(command, task["task"])
    assert MISSING in compared.haloctl.answer("matrix", compared.job)


def test_what_is_taken_over_needs_no_build(compared: Compared) -> None:
    for path in compared.built():
        path.unlink()
    again = compared.haloctl.run("submit", compared.haloctl.job(**under("iree-9.2")), "--wait")
    assert again.code == 0, again.err
    job = compared.haloctl.json("list")[0]["job"]
    assert compiles(compared.haloctl, job)["iree-9.2"]["state"] == "cached"
    assert not compared.built()
