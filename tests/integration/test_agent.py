"""An agent with real attempts: start, poll, cancel, stop, and what it finds after a predecessor was killed."""

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.errors import StorageUnusable
from jobs.state import FailureKind
from jobs.task import Artifact, Attempt, TaskResult
from tests.integration.attempts import DEADLINE_S, FINITE_INVOCATION, attempt, living, python, until
from workers.agent import Agent
from workers.folders import log_path

ROOT = Path(__file__).parents[2]
SLEEP = "print('up', flush=True); import time; time.sleep(600)"

#: An agent in a process of its own, which can be killed; its attempts come pickled in a file.
KILLABLE = """
import pickle, sys, time
from pathlib import Path
from workers.agent import Agent
agent = Agent("n1", Path(sys.argv[1]))
agent.start(pickle.loads(Path(sys.argv[2]).read_bytes()))
time.sleep(600)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def agent(data: Path) -> Iterator[Agent]:
    agent = Agent("n1", data)
    yield agent
    assert agent.stop(DEADLINE_S)


def one_result(agent: Agent) -> TaskResult:
    (result,) = agent.poll(wait_s=DEADLINE_S)
    return result


def kind(result: TaskResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def is_up(data: Path, given: Attempt) -> bool:
    log = log_path(data, given.id)
    return log.exists() and log.read_text().endswith("up\n")


def started(agent: Agent, data: Path) -> Attempt:
    """An attempt that runs until it is ended."""
    given = attempt(python(SLEEP))
    agent.start(given)
    until(lambda: is_up(data, given), "the attempt is up")
    return given


def test_an_agent_describes_its_node_and_toolchain(agent: Agent) -> None:
    node = agent.describe()
    assert (node.id, node.count("cpu")) == ("n1", 8)
    assert node.cpus >= 1
    assert node.memory_bytes > 1 << 28
    assert "iree-base-compiler" in agent.toolchain().versions


def test_a_result_is_kept_until_it_is_acknowledged(agent: Agent) -> None:
    given = attempt(python(FINITE_INVOCATION))
    agent.start(given)
    result = one_result(agent)
    assert (result.attempt, result.failure, agent.running()) == (given.id, None, [])
    assert agent.poll() == [result]
    assert agent.poll(acknowledged=[given.id]) == []
    assert agent.poll() == []


def test_a_result_survives_the_way_to_the_head(agent: Agent) -> None:
    agent.start(attempt(python(FINITE_INVOCATION)))
    result = one_result(agent)
    assert pickle.loads(pickle.dumps(result)) == result


def test_an_attempt_that_is_started_twice_runs_once(agent: Agent, data: Path) -> None:
    given = attempt(python("print('ran')"))
    agent.start(given)
    agent.start(given)
    one_result(agent)
    agent.poll(acknowledged=[given.id])
    agent.start(given)
    assert agent.running() == []
    assert log_path(data, given.id).read_text().splitlines().count("ran") == 1


def test_a_cancelled_attempt_answers_when_all_of_it_has_ended(agent: Agent, data: Path) -> None:
    given = started(agent, data)
    assert agent.running() == [given.id]
    assert agent.cancel(given.id)
    result = one_result(agent)
    assert (result.attempt, kind(result)) == (given.id, FailureKind.CANCELLED)
    assert list((data / "work").iterdir()) == []


def test_what_does_not_run_cannot_be_cancelled(agent: Agent) -> None:
    assert not agent.cancel("0123abcd-99-1")


def test_cancelling_one_attempt_leaves_the_others_alone(agent: Agent, data: Path) -> None:
    one, other = started(agent, data), started(agent, data)
    agent.cancel(one.id)
    assert one_result(agent).attempt == one.id
    assert agent.running() == [other.id]


def test_attempts_run_side_by_side(agent: Agent, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    meet = "import os, sys, time\nopen(sys.argv[1] + '/' + str(os.getpid()), 'w').close()\n"
    meet += "while len(os.listdir(sys.argv[1])) < 4: time.sleep(0.005)\n"
    for _ in range(4):
        agent.start(attempt(python(meet + FINITE_INVOCATION, str(meeting))))
    until(lambda: len(agent.poll()) == 4, "all have met")
    assert [kind(result) for result in agent.poll()] == [None] * 4


def test_a_stopped_agent_has_ended_everything_and_starts_nothing(data: Path) -> None:
    agent = Agent("n1", data)
    given = started(agent, data)
    assert agent.stop(DEADLINE_S)
    assert [kind(result) for result in agent.poll()] == [FailureKind.CANCELLED]
    late = attempt(python("print('ran')"))
    agent.start(late)
    until(lambda: len(agent.poll()) == 2, "the late one has a result")
    assert {kind(result) for result in agent.poll()} == {FailureKind.CANCELLED}
    assert not log_path(data, late.id).exists()
    assert living(given.id) == []


def test_a_bug_becomes_a_result_that_shows_where_it_is(agent: Agent) -> None:
    escaping = Artifact("../../outside", "mlir", "0" * 64, 0)
    given = attempt(python(""), inputs={"export": (escaping,)})
    agent.start(given)
    result = one_result(agent)
    assert (result.attempt, result.epoch, kind(result)) == (given.id, given.epoch, FailureKind.INTERNAL)
    assert result.failure
    assert "can't be a file's name" in result.failure.message
    assert "Traceback" in result.failure.log_tail
    assert agent.running() == []


def test_a_polling_head_is_woken_by_a_result(agent: Agent, data: Path) -> None:
    given = started(agent, data)
    found: list[TaskResult] = []
    head = threading.Thread(target=lambda: found.extend(agent.poll(wait_s=DEADLINE_S)))
    head.start()
    agent.cancel(given.id)
    head.join(DEADLINE_S)
    assert [result.attempt for result in found] == [given.id]


def test_an_agent_ends_and_removes_what_a_killed_one_left(data: Path, tmp_path: Path) -> None:
    marker = f"marker-{uuid4().hex}"
    given = replace(attempt(python(SLEEP, marker)), id=uuid4().hex)
    (tmp_path / "attempt").write_bytes(pickle.dumps(given))
    killable = [sys.executable, "-c", KILLABLE, str(data), str(tmp_path / "attempt")]
    with subprocess.Popen(killable, cwd=ROOT) as process:
        until(lambda: is_up(data, given), "the attempt is up")
        guards = psutil.Process(process.pid).children(recursive=True)
        for guard in guards:
            if "keeper" in str(guard.cmdline()):
                guard.suspend()  # so that only the new agent can do it
        process.kill()
    assert living(marker)
    Agent("n1", data)
    assert living(marker) == []
    assert list((data / "work").iterdir()) == []
    for guard in guards:
        if guard.is_running():
            guard.resume()


def test_agents_that_share_a_data_folder_leave_each_others_attempts_alone(agent: Agent, data: Path) -> None:
    given = started(agent, data)
    Agent("n2", data)
    assert agent.running() == [given.id]
    assert (data / "work" / given.id / "outputs").is_dir()


def test_an_agent_whose_store_cannot_be_written_says_so_at_once(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnusable, match="artifact store"):
        Agent("n1", data, tmp_path / "file" / "artifacts")
