"""An agent with real attempts: start, poll, cancel, stop, and what it finds after a predecessor was killed."""

import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.state import FailureKind
from jobs.task import Artifact, Attempt, TaskResult
from tests.command_lines import command_text
from tests.integration.attempts import DEADLINE_S, FINITE_INVOCATION, living, make_attempt, python, until
from tests.integration.disks import fill, small_disk
from workers.agent import store_mark
from workers.agent.agent import AFTER_ALL_TERMS, Agent
from workers.agent.log_parts import PART_BYTES
from workers.agent.protocol import AgentConfig, LaunchRequest, StaleTerm
from workers.artifacts import ArtifactStore
from workers.artifacts.locations import MARK
from workers.attempts.folders import log_path

__all__ = ["small_disk"]

ROOT = Path(__file__).parents[3]
SLEEP = "print('up', flush=True); import time; time.sleep(600)"

#: An agent in a process of its own, which can be killed; its attempts come pickled in a file.
KILLABLE = """
import pickle, sys, time
from pathlib import Path
from workers.agent.agent import Agent
from workers.agent.protocol import LaunchRequest, AgentConfig
agent = Agent(AgentConfig("n1", Path(sys.argv[1])))
agent.start(1, [LaunchRequest(pickle.loads(Path(sys.argv[2]).read_bytes()))])
time.sleep(600)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def agent(data: Path) -> Iterator[Agent]:
    agent = Agent(AgentConfig("n1", data))
    yield agent
    assert agent.stop(AFTER_ALL_TERMS, DEADLINE_S)


def one_result(agent: Agent) -> TaskResult:
    (result,) = agent.poll(1, wait_s=DEADLINE_S).results
    return result


def start(agent: Agent, attempt: Attempt) -> None:
    agent.start(1, [LaunchRequest(attempt)])


def results(agent: Agent) -> Sequence[TaskResult]:
    return agent.poll(1).results


def running(agent: Agent, *expected: Attempt) -> set[str]:
    """What the agent has of some attempts; others end."""
    return set(agent.accept_leader(1, {known.id: known.epoch for known in expected}).attempts)


def kind(result: TaskResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def is_up(data: Path, attempt: Attempt) -> bool:
    log = log_path(data, attempt.id)
    return log.exists() and log.read_text().endswith("up\n")


def started(agent: Agent, data: Path) -> Attempt:
    """An attempt that runs until it is ended."""
    attempt = make_attempt(python(SLEEP))
    start(agent, attempt)
    until(lambda: is_up(data, attempt), "the attempt is up")
    return attempt


def test_an_agent_describes_its_node_and_toolchain(agent: Agent) -> None:
    report = agent.accept_leader(1, {})
    node = report.node
    assert (node.id, node.count("cpu")) == ("n1", 8)
    assert node.cpus >= 1
    assert node.memory_bytes > 1 << 28
    assert "iree-base-compiler" in report.toolchain.versions


def test_a_result_is_kept_until_it_is_acknowledged(agent: Agent) -> None:
    attempt = make_attempt(python(FINITE_INVOCATION))
    start(agent, attempt)
    answer = agent.poll(1, wait_s=DEADLINE_S)
    (result,) = answer.results
    assert (result.attempt, result.failure, running(agent, attempt)) == (attempt.id, None, {attempt.id})
    assert results(agent) == [result]
    assert agent.poll(1, after=answer.cursor).results == []
    assert agent.poll(1, forget=[attempt.id]).results == []
    assert running(agent, attempt) == set()


def test_a_result_survives_the_way_to_the_head(agent: Agent) -> None:
    start(agent, make_attempt(python(FINITE_INVOCATION)))
    result = one_result(agent)
    assert pickle.loads(pickle.dumps(result)) == result


def test_an_attempt_that_is_started_twice_runs_once(agent: Agent, data: Path) -> None:
    attempt = make_attempt(python("print('ran')"))
    start(agent, attempt)
    start(agent, attempt)
    one_result(agent)
    agent.forget(1, [attempt.id])
    assert agent.start(1, [LaunchRequest(attempt)]) == [attempt.id]
    assert running(agent, attempt) == set()
    assert log_path(data, attempt.id).read_text().splitlines().count("ran") == 1


def test_a_cancelled_attempt_answers_when_all_of_it_has_ended(agent: Agent, data: Path) -> None:
    attempt = started(agent, data)
    agent.cancel(1, [attempt.id])
    result = one_result(agent)
    assert (result.attempt, kind(result)) == (attempt.id, FailureKind.CANCELLED)
    assert list((data / "work").iterdir()) == []


def test_cancelling_one_attempt_leaves_the_others_alone(agent: Agent, data: Path) -> None:
    cancelled, other = started(agent, data), started(agent, data)
    agent.cancel(1, [cancelled.id, "0123abcd-99-1"])
    assert one_result(agent).attempt == cancelled.id
    assert running(agent, other) == {other.id}


def test_attempts_run_side_by_side(agent: Agent, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    meet = "import os, sys, time\nopen(sys.argv[1] + '/' + str(os.getpid()), 'w').close()\n"
    meet += "while len(os.listdir(sys.argv[1])) < 4: time.sleep(0.005)\n"
    for _ in range(4):
        start(agent, make_attempt(python(meet + FINITE_INVOCATION, str(meeting))))
    until(lambda: len(results(agent)) == 4, "all have met")
    assert [kind(result) for result in results(agent)] == [None] * 4


def test_a_stopped_agent_has_ended_everything_and_starts_nothing(data: Path) -> None:
    agent = Agent(AgentConfig("n1", data))
    attempt = started(agent, data)
    assert agent.stop(1, DEADLINE_S)
    assert [kind(result) for result in results(agent)] == [FailureKind.CANCELLED]
    late = make_attempt(python("print('ran')"))
    start(agent, late)
    until(lambda: len(results(agent)) == 2, "the late one has a result")
    assert {kind(result) for result in results(agent)} == {FailureKind.CANCELLED}
    assert not log_path(data, late.id).exists()
    assert living(attempt.id) == []


def test_a_bug_becomes_a_result_that_shows_where_it_is(agent: Agent) -> None:
    escaping = Artifact("../../outside", "mlir", "0" * 64, 0)
    attempt = make_attempt(python(""), inputs={"export": (escaping,)})
    start(agent, attempt)
    result = one_result(agent)
    assert (result.attempt, result.epoch, kind(result)) == (attempt.id, attempt.epoch, FailureKind.INTERNAL)
    assert result.failure
    assert "is no name of a file" in result.failure.message
    assert "Traceback" in result.failure.log_tail


def test_a_polling_head_is_woken_by_a_result(agent: Agent, data: Path) -> None:
    attempt = started(agent, data)
    received: list[TaskResult] = []
    head = threading.Thread(target=lambda: received.extend(agent.poll(1, wait_s=DEADLINE_S).results))
    head.start()
    agent.cancel(1, [attempt.id])
    head.join(DEADLINE_S)
    assert [result.attempt for result in received] == [attempt.id]


def test_an_agent_ends_and_removes_what_a_killed_one_left(data: Path, tmp_path: Path) -> None:
    marker = f"marker-{uuid4().hex}"
    attempt = replace(make_attempt(python(SLEEP, marker)), id=uuid4().hex)
    (tmp_path / "attempt").write_bytes(pickle.dumps(attempt))
    killable = [sys.executable, "-c", KILLABLE, str(data), str(tmp_path / "attempt")]
    with subprocess.Popen(killable, cwd=ROOT) as process:
        until(lambda: is_up(data, attempt), "the attempt is up")
        children = psutil.Process(process.pid).children(recursive=True)
        for child in children:
            if "fork_server" in command_text(child):
                child.suspend()  # so that only the new agent can do it
        process.kill()
    assert living(marker)
    Agent(AgentConfig("n1", data))
    assert living(marker) == []
    assert list((data / "work").iterdir()) == []
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.resume()


def test_agents_that_share_a_data_folder_leave_each_others_attempts_alone(agent: Agent, data: Path) -> None:
    attempt = started(agent, data)
    Agent(AgentConfig("n2", data))
    assert running(agent, attempt) == {attempt.id}
    assert (data / "work" / attempt.id / "run" / "outputs").is_dir()


def test_an_agent_whose_store_cannot_be_written_says_so_at_once(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    agent = Agent(AgentConfig("n1", data, tmp_path / "file" / "artifacts"))
    assert "artifact store" in (agent.accept_leader(1, {}).cordon_reason or "")
    start(agent, make_attempt(python("")))
    until(lambda: results(agent), "it has a result")
    assert kind(results(agent)[0]) is FailureKind.STORE_UNUSABLE


def test_what_was_made_while_the_store_was_full_waits_on_the_node(data: Path, small_disk: Path) -> None:
    store = small_disk / "artifacts"
    agent = Agent(AgentConfig("n1", data, store))
    agent.accept_leader(1, {})
    filling = fill(small_disk)
    program = python("open('outputs/model.vmfb', 'w').write('program')")
    compile_settings = {"target": "cpu", "tp": 1, "flags": [], "prefill_rows": 8, "decode_rows": 1}
    attempt = make_attempt(program, stage="compile", settings=compile_settings)
    start(agent, attempt)
    until(lambda: "no space is left on it" in (agent.poll(1).cordon_reason or ""), "the node is closed, and says why")
    assert results(agent) == []
    filling.unlink()
    until(lambda: results(agent), "it has a result")
    (result,) = results(agent)
    assert result.failure is None
    assert ArtifactStore(store).has_all(result.artifacts)
    assert {artifact.kind for artifact in result.artifacts} == {"vmfb", "log"}
    until(lambda: agent.poll(1).cordon_reason is None, "the node is open again")


def test_who_cancels_an_attempt_whose_files_wait_need_not_wait(data: Path, small_disk: Path) -> None:
    agent = Agent(AgentConfig("n1", data, small_disk / "artifacts"))
    agent.accept_leader(1, {})
    fill(small_disk)
    attempt = make_attempt(python(""))
    start(agent, attempt)
    until(lambda: agent.poll(1).cordon_reason, "its log waits")
    agent.cancel(1, [attempt.id])
    until(lambda: results(agent), "it has a result")


def test_an_agent_that_does_not_see_the_heads_store_says_so_until_it_does(data: Path, tmp_path: Path) -> None:
    heads, own_store = tmp_path / "heads", tmp_path / "own"
    mark = store_mark.make(heads)
    assert store_mark.make(heads) == mark != store_mark.make(own_store)
    agent = Agent(AgentConfig("n1", data, own_store, mark))
    assert "not the head's artifact store" in (agent.accept_leader(1, {}).cordon_reason or "")
    shutil.copy(heads / MARK, own_store / MARK)
    assert agent.poll(1).cordon_reason is None


def test_a_new_head_takes_over_what_it_knows_and_ends_the_rest(agent: Agent, data: Path) -> None:
    known, unknown = started(agent, data), started(agent, data)
    missing = make_attempt(python("print('ran')"))
    report = agent.accept_leader(2, {known.id: known.epoch, unknown.id: unknown.epoch + 1, missing.id: missing.epoch})
    assert report.attempts == {known.id: None}
    until(lambda: living(unknown.id) == [] and not (data / "work" / unknown.id).exists(), "the unknown one has ended")
    assert agent.start(2, [LaunchRequest(missing)]) == [missing.id], "its order came too late"
    agent.cancel(2, [known.id])
    assert [result.attempt for result in agent.poll(2, wait_s=DEADLINE_S).results] == [known.id]


def test_a_head_that_is_not_the_newest_is_refused_and_its_poll_ends(agent: Agent) -> None:
    refusals: list[Exception] = []

    def poll() -> None:
        try:
            agent.poll(1, wait_s=DEADLINE_S)
        except StaleTerm as error:
            refusals.append(error)

    waiting = threading.Thread(target=poll)
    waiting.start()
    agent.accept_leader(2, {})
    waiting.join(DEADLINE_S)
    assert [pickle.loads(pickle.dumps(error)).newest for error in refusals] == [2]
    attempt = make_attempt(python("print('ran')"))
    for call in (lambda: agent.start(1, [LaunchRequest(attempt)]), lambda: agent.renew(1, 0.0), lambda: agent.stop(1)):
        with pytest.raises(StaleTerm, match="another head leads"):
            call()


def test_a_log_is_read_in_parts_of_whole_characters(agent: Agent, data: Path) -> None:
    log = log_path(data, "0123abcd-98-1")
    log.parent.mkdir(parents=True)
    log.write_bytes("aä".encode()[:2])
    ((chunk, end),) = agent.read_logs(1, {"0123abcd-98-1": 0})
    assert (chunk.offset, chunk.text, end) == (0, "a", 1)
    assert agent.read_logs(1, {"0123abcd-98-1": end}) == []
    log.write_bytes("aä".encode() + b"\xff" + b"b" * PART_BYTES)
    ((chunk, end),) = agent.read_logs(1, {"0123abcd-98-1": end})
    assert (chunk.text[:3], end) == ("ä\ufffdb", 1 + PART_BYTES)
    assert agent.read_logs(1, {"0123abcd-97-1": 0}) == []
