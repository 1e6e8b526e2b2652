"""The cost of haloctl as ratios to the bare commands in the same run. Nothing is asserted; `make bench` prints."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.benchmark

HALOCTL = (sys.executable, "-m", "orchestrator.cli")


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def run(*argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    return subprocess.run(argv, cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout


def medians(actions: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """The median time of each action; they take turns, so that a noisy moment hits all of them."""
    samples = [[timed(action) for action in actions] for _ in range(repetitions)]
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def test_help_against_an_interpreter_that_does_nothing() -> None:
    bare, helped = medians([lambda: run(sys.executable, "-c", "pass"), lambda: run(*HALOCTL, "--help")], repetitions=15)
    print(f"\nhaloctl --help: {helped / bare:.1f} x `python -c pass` ({helped * 1e3:.0f} ms, {bare * 1e3:.0f} ms)")


def test_the_demo_against_its_bare_commands(tmp_path: Path) -> None:
    """One core for both, so that tasks run one after the other as the bare commands do."""
    env = os.environ | {"HALOCTL_DATA": str(tmp_path / "data")}
    one_core = ("taskset", "-c", str(min(os.sched_getaffinity(0))))
    whole_s = timed(lambda: run(*one_core, *HALOCTL, "submit", "demo", "--wait", env=env))

    def ask(*words: str) -> Any:
        return json.loads(run(*HALOCTL, *words, "--json", env=env))

    job = ask("list")[0]["job"]
    files = {artifact["sha256"]: artifact["path"] for artifact in ask("artifacts", job)}
    ran = [task for task in ask("show", job)["tasks"] if task["state"] == "succeeded"]
    tasks_s = sum(seconds_between(task["started_at"], task["ended_at"]) for task in ran)
    whole = [ask("show", task["task"]) for task in ran]
    inside_s = sum(process["wall_s"] for task in whole for process in task["attempts"][0]["processes"])
    bare_s = sum(bare(task, files, tmp_path / task["task"], one_core) for task in whole)
    print(
        f"\nthe demo's {len(ran)} tasks on one core: {tasks_s:.1f} s"
        f"\n  in their processes {inside_s:.1f} s: ratio {tasks_s / inside_s:.3f}"
        f"\n  the bare commands by hand {bare_s:.1f} s: ratio {tasks_s / bare_s:.3f}"
        f"\n  from submit to the matrix {whole_s:.1f} s: ratio {whole_s / bare_s:.3f} to the bare commands"
    )


def seconds_between(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def bare(task: dict[str, Any], files: dict[str, str], folder: Path, one_core: tuple[str, ...]) -> float:
    """Run a task's recorded commands by hand; returns their time in seconds."""
    attempt = task["attempts"][0]
    (folder / "outputs").mkdir(parents=True)
    for stage, artifacts in attempt["inputs"].items():
        (folder / "inputs" / stage).mkdir(parents=True)
        for artifact in artifacts:
            if artifact["sha256"] in files:
                (folder / "inputs" / stage / artifact["name"]).symlink_to(files[artifact["sha256"]])
    commands = [
        partial(run, *one_core, *process["argv"], cwd=folder, env=attempt["environment"])
        for process in attempt["processes"]
    ]
    return sum(map(timed, commands))
