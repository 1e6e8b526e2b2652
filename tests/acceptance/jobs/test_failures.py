"""A tool that fails fills its cell and blocks what needs it; everything else goes on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Done, Haloctl, opened
from tests.acceptance.job_specs import EVERYTHING

VARIANT = "tiny-llama-FP16-TP1"

#: A chip that does not exist: only the compiler for ROCm minds.
HALF_BROKEN = {
    **EVERYTHING,
    "name": "half broken",
    "variants": {"precision": "f16", "tp": [1, 2], "target": ["cpu", "mi300x"], "exclude": [{"tp": 2}]},
    "stages": ["export", "compile", "invoke"],
    "compile": {"flags": ["--iree-rocm-target=gfx000000"]},
}


class Failed:
    """A haloctl with a failed job, and the output of `submit --wait`."""

    def __init__(self, haloctl: Haloctl, job: dict[str, Any]) -> None:
        self.haloctl = haloctl
        self.done: Done = haloctl.run("submit", haloctl.job(**job), "--wait")
        self.job: str = haloctl.json("list")[0]["job"]


@pytest.fixture(scope="module")
def half(temporary: Path, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failed]:
    """For reading only: cpu compiles, mi300x does not."""
    with opened(tmp_path_factory.mktemp("half"), temporary, filled.haloctl.data) as haloctl:
        yield Failed(haloctl, HALF_BROKEN)


def test_the_command_ends_with_3_and_says_where_to_look(half: Failed) -> None:
    assert half.done.code == 3
    assert half.done.err.splitlines()[-1] == (
        f"haloctl: job {half.job} ended as failed: `haloctl show {half.job}` says why"
    )
    assert "Traceback" not in half.done.err


def test_only_what_needs_the_failed_task_is_blocked(half: Failed) -> None:
    assert half.haloctl.states(half.job) == {
        f"export {VARIANT}": "cached",
        f"compile {VARIANT} cpu": "succeeded",
        f"compile {VARIANT} mi300x": "failed",
        f"invoke {VARIANT} cpu": "cached",  # the flag says nothing to the CPU's compiler: the same module came out
        f"invoke {VARIANT} mi300x": "blocked",
    }


def test_the_cell_and_the_task_tell_the_kind_and_the_compiler_s_own_reason(half: Failed) -> None:
    (row,) = half.haloctl.json("matrix", half.job, "--target", "mi300x")
    failure = row["stages"]["compile"]["failure"]
    assert failure["kind"] == "tool_failed"
    assert "gfx000000" in failure["message"]
    text = half.haloctl.answer("matrix", half.job)
    assert "FAIL tool_failed" in text
    assert f"FAIL tool_failed: {failure['message']}" in text
    assert f"tool_failed: {failure['message']}" in half.haloctl.answer("show", half.job)


def test_the_blocked_cell_names_what_blocks_it(half: Failed) -> None:
    (row,) = half.haloctl.json("matrix", half.job, "--target", "mi300x")
    compiling, invoking = row["stages"]["compile"], row["stages"]["invoke"]
    assert compiling["task"] in invoking["blocked_by"]
    assert invoking["failure"] is None


def test_the_log_of_a_failed_task_is_kept(half: Failed) -> None:
    task = half.haloctl.tasks(half.job)[f"compile {VARIANT} mi300x"]
    assert "Unknown ROCM target 'gfx000000'" in half.haloctl.answer("logs", task["task"])
    kept = [row for row in half.haloctl.json("artifacts", half.job) if row["task"] == task["task"]]
    assert [row["kind"] for row in kept] == ["log"]
    (attempt,) = half.haloctl.json("show", task["task"])["attempts"]
    assert attempt["processes"][0]["exit_code"] != 0
    assert "gfx000000" in attempt["failure"]["log_tail"]


def test_a_program_s_failure_is_not_tried_again_by_itself(half: Failed) -> None:
    assert half.haloctl.tasks(half.job)[f"compile {VARIANT} mi300x"]["attempts"] == 1


def test_retry_waits_if_asked_to(half: Failed, temporary: Path, tmp_path: Path) -> None:
    with opened(tmp_path, temporary, half.haloctl.data) as haloctl:
        done = haloctl.run("retry", half.job, "--wait", "--json")
        assert done.code == 3, done.err
        assert "queued again: 2 tasks" in done.err
        assert "FAIL" not in done.out and len(json.loads(done.out)) == 2
        assert haloctl.tasks(half.job)[f"compile {VARIANT} mi300x"]["attempts"] == 2


def test_retry_queues_again_what_failed_and_what_it_blocked(half: Failed, temporary: Path, tmp_path: Path) -> None:
    before = half.haloctl.tasks(half.job)
    with opened(tmp_path, temporary, half.haloctl.data) as haloctl:
        assert sorted(haloctl.json("retry", half.job)["queued"]) == sorted(
            before[f"{stage} {VARIANT} mi300x"]["task"] for stage in ("compile", "invoke")
        )
        assert haloctl.json("list")[0]["state"] in ("queued", "running")
        assert haloctl.run("retry", half.job).code == 5

        assert haloctl.run("wait", half.job).code == 3
        after = haloctl.tasks(half.job)
        for name, task in after.items():
            is_again = name == f"compile {VARIANT} mi300x"
            assert task["attempts"] == before[name]["attempts"] + is_again
            assert task["state"] == before[name]["state"]
        attempts = haloctl.json("show", after[f"compile {VARIANT} mi300x"]["task"])["attempts"]
        assert [attempt["outcome"] for attempt in attempts] == ["failed", "failed"]
