"""Attempts on a real local Ray, under the real agent: whatever part dies, attempts come back and the next one runs."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.state import FailureKind
from jobs.task import Attempt, Command, TaskResult
from orchestrator.ray_executor import RayExecutor
from tests.command_lines import command_line, command_text
from tests.integration.attempts import DEADLINE_S, FINITE_INVOCATION, living, make_attempt, python, until
from tests.other_users import can_enter, needs_root

WELL = python(FINITE_INVOCATION)
AGENT, RAYLET, CONTROL_STORE = "ray::Agent", "raylet/raylet", "gcs_server"


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    before = children()
    executor = RayExecutor(tmp_path_factory.mktemp("data"))
    yield executor
    executor.close()
    until(lambda: children() <= before, "no process of Ray is left")


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def endless(marker: str) -> Command:
    return python("import time; time.sleep(600)", marker)


def results(executor: RayExecutor, count: int = 1) -> list[TaskResult]:
    """The next results, looking at the nodes as the head does."""
    collected: list[TaskResult] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(collected) < count:
        assert time.monotonic() < deadline, f"{len(collected)} of {count} results within {DEADLINE_S:g} s"
        executor.nodes()
        collected += executor.collect(0.2)
    return collected


def kind(result: TaskResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def running(executor: RayExecutor, marker: str) -> Attempt:
    """Start an attempt and wait for its process."""
    attempt = make_attempt(endless(marker), timeout_s=600.0)
    executor.start([attempt])
    until(lambda: living(marker), "the attempt's process is up")
    return attempt


def kill(name: str) -> None:
    """Kill this Ray's process with this name, once it is the only one: a process that was just forked still has its
    parent's name."""
    processes: list[psutil.Process] = []

    def is_one() -> bool:
        processes[:] = [process for process in children() if name in command_text(process)]
        return len(processes) == 1

    until(is_one, f"one {name} is there")
    processes[0].kill()


def test_attempts_run_side_by_side_and_each_result_comes_once(executor: RayExecutor) -> None:
    attempts = [make_attempt(WELL) for _ in range(3)]
    for attempt in attempts:
        executor.start([attempt])
    assert executor.in_flight() == {attempt.id for attempt in attempts}
    collected = results(executor, len(attempts))
    assert sorted(result.attempt for result in collected) == sorted(attempt.id for attempt in attempts)
    assert {kind(result) for result in collected} == {None}
    assert executor.in_flight() == set()
    assert executor.collect(0.5) == []


@needs_root
def test_another_user_cannot_enter_the_folder_of_a_local_ray(executor: RayExecutor) -> None:
    executor.ensure_ready()
    folders = set()
    for child in children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            folders |= {path for name, path in child.environ().items() if name == "HALOCTL_RAY_FOLDER"}
    assert folders
    for folder in folders:
        assert Path(folder, "session_latest").exists()
        assert not can_enter(folder)


def test_a_local_ray_runs_no_more_than_attempts_need(executor: RayExecutor) -> None:
    executor.ensure_ready()
    scripts = {
        word.rpartition("/")[2] for process in children() for word in command_line(process) if word.endswith(".py")
    }
    assert scripts
    assert scripts.isdisjoint({"log_monitor.py", "monitor.py"})


def test_a_cancelled_attempt_ends_with_its_processes(executor: RayExecutor) -> None:
    marker = uuid4().hex
    attempt = running(executor, marker)
    executor.cancel(attempt.id)
    (result,) = results(executor)
    assert (result.attempt, kind(result)) == (attempt.id, FailureKind.CANCELLED)
    assert living(marker) == []


def test_an_attempt_ends_when_its_time_is_over(executor: RayExecutor) -> None:
    marker = uuid4().hex
    executor.start([make_attempt(endless(marker), timeout_s=1.0)])
    (result,) = results(executor)
    assert kind(result) is FailureKind.TIMED_OUT
    assert living(marker) == []


def test_cancelling_what_nobody_knows_does_nothing(executor: RayExecutor) -> None:
    executor.cancel("0123abcd-77-1")
    executor.start([make_attempt(WELL)])
    assert kind(results(executor)[0]) is None


@pytest.mark.parametrize("name", [AGENT, RAYLET, CONTROL_STORE])
def test_what_ran_on_a_ray_that_lost_a_process_comes_back_and_the_next_attempt_runs(
    executor: RayExecutor, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = uuid4().hex
    attempt = running(executor, marker)
    kill(name)
    (result,) = results(executor)
    assert (result.attempt, result.epoch, kind(result)) == (attempt.id, attempt.epoch, FailureKind.NODE_LOST)
    assert executor.in_flight() == set()
    executor.cancel(attempt.id)
    until(lambda: living(marker) == [], "nothing of the lost attempt is left")

    following = make_attempt(WELL)
    executor.start([following])
    (result,) = results(executor)
    assert (result.attempt, kind(result)) == (following.id, None)
    assert capfd.readouterr().out == "", "stdout is for the answer of a command"


def test_an_attempt_that_is_handed_to_a_dead_agent_comes_back_as_lost(executor: RayExecutor) -> None:
    attempt = make_attempt(WELL)

    def is_handed_over() -> bool:
        """An attempt is refused where the agent is already known to be dead."""
        executor.start([make_attempt(WELL)])
        results(executor)
        kill(AGENT)
        return executor.start([attempt]) == {}

    until(is_handed_over, "an attempt is handed to an agent that was just killed")
    (result,) = results(executor)
    assert (result.attempt, kind(result)) == (attempt.id, FailureKind.NODE_LOST)
    executor.start([make_attempt(WELL)])
    assert kind(results(executor)[0]) is None


def test_closing_ends_what_runs_and_every_process_of_ray(executor: RayExecutor) -> None:
    marker = uuid4().hex
    running(executor, marker)
    executor.close()
    assert living(marker) == []
    assert [process for process in children() if CONTROL_STORE in command_text(process)] == []
    assert executor.in_flight() == set()
    executor.close()
