"""Attempts on a real local Ray, under the real agent: whatever of it dies, what ran comes back and the next runs."""

import time
from collections.abc import Iterator
from uuid import uuid4

import psutil
import pytest

from jobs.state import FailureKind
from jobs.task import Attempt, Command, TaskResult
from orchestrator.ray_executor import RayExecutor
from tests.command_lines import command_line, command_text
from tests.integration.attempts import DEADLINE_S, FINITE_INVOCATION, attempt, living, python, until

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
    found: list[TaskResult] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} results within {DEADLINE_S:g} s"
        executor.nodes()
        found += executor.collect(0.2)
    return found


def kind(result: TaskResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def running(executor: RayExecutor, marker: str) -> Attempt:
    """An attempt whose process is up."""
    given = attempt(endless(marker), timeout_s=600.0)
    executor.start([given])
    until(lambda: living(marker), "the attempt's process is up")
    return given


def kill(name: str) -> None:
    """Kill the one process of this Ray that is called so, once there is no other: what was just forked is called as
    its parent is."""
    found: list[psutil.Process] = []

    def is_one() -> bool:
        found[:] = [process for process in children() if name in command_text(process)]
        return len(found) == 1

    until(is_one, f"one {name} is there")
    found[0].kill()


def test_attempts_run_side_by_side_and_each_result_comes_once(executor: RayExecutor) -> None:
    given = [attempt(WELL) for _ in range(3)]
    for one in given:
        executor.start([one])
    assert executor.running() == {one.id for one in given}
    found = results(executor, len(given))
    assert sorted(result.attempt for result in found) == sorted(one.id for one in given)
    assert {kind(result) for result in found} == {None}
    assert executor.running() == set()
    assert executor.collect(0.5) == []


def test_a_local_ray_runs_no_more_than_attempts_need(executor: RayExecutor) -> None:
    executor.open()
    scripts = {
        word.rpartition("/")[2] for process in children() for word in command_line(process) if word.endswith(".py")
    }
    assert scripts
    assert scripts.isdisjoint({"log_monitor.py", "monitor.py"})


def test_a_cancelled_attempt_ends_with_its_processes(executor: RayExecutor) -> None:
    marker = uuid4().hex
    given = running(executor, marker)
    executor.cancel(given.id)
    (result,) = results(executor)
    assert (result.attempt, kind(result)) == (given.id, FailureKind.CANCELLED)
    assert living(marker) == []


def test_an_attempt_ends_when_its_time_is_over(executor: RayExecutor) -> None:
    marker = uuid4().hex
    executor.start([attempt(endless(marker), timeout_s=1.0)])
    (result,) = results(executor)
    assert kind(result) is FailureKind.TIMED_OUT
    assert living(marker) == []


def test_cancelling_what_nobody_knows_does_nothing(executor: RayExecutor) -> None:
    executor.cancel("0123abcd-77-1")
    executor.start([attempt(WELL)])
    assert kind(results(executor)[0]) is None


@pytest.mark.parametrize("name", [AGENT, RAYLET, CONTROL_STORE])
def test_what_ran_on_a_ray_that_lost_a_process_comes_back_and_the_next_attempt_runs(
    executor: RayExecutor, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = uuid4().hex
    given = running(executor, marker)
    kill(name)
    (result,) = results(executor)
    assert (result.attempt, result.epoch, kind(result)) == (given.id, given.epoch, FailureKind.NODE_LOST)
    assert executor.running() == set()
    executor.cancel(given.id)
    until(lambda: living(marker) == [], "nothing of the lost attempt is left")

    following = attempt(WELL)
    executor.start([following])
    (result,) = results(executor)
    assert (result.attempt, kind(result)) == (following.id, None)
    assert capfd.readouterr().out == "", "stdout is for the answer of a command"


def test_an_attempt_that_is_handed_to_a_dead_agent_comes_back_as_lost(executor: RayExecutor) -> None:
    given = attempt(WELL)

    def is_handed_over() -> bool:
        """Refused it is where it is known already that the agent is dead."""
        executor.start([attempt(WELL)])
        results(executor)
        kill(AGENT)
        return executor.start([given]) == {}

    until(is_handed_over, "an attempt is handed to an agent that was just killed")
    (result,) = results(executor)
    assert (result.attempt, kind(result)) == (given.id, FailureKind.NODE_LOST)
    executor.start([attempt(WELL)])
    assert kind(results(executor)[0]) is None


def test_closing_ends_what_runs_and_every_process_of_ray(executor: RayExecutor) -> None:
    marker = uuid4().hex
    running(executor, marker)
    executor.close()
    assert living(marker) == []
    assert [process for process in children() if CONTROL_STORE in command_text(process)] == []
    assert executor.running() == set()
    executor.close()
