"""An agent builds toolchains, with uv and wheels that are made here: at once, once, and again after it failed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.state import FailureKind
from jobs.toolchain_table import find_toolchain
from jobs.toolchains import Lock, Toolchain
from tests import toolchain_wheels
from tests.integration.attempts import DEADLINE_S, make_attempt, python, until
from workers.agent.agent import AFTER_ALL_TERMS, Agent
from workers.agent.builds import FORGET_FAILURE_AFTER_S, ToolchainBuilder
from workers.agent.protocol import AgentConfig, LaunchRequest
from workers.toolchain_probe import probe_toolchain
from workers.toolchains.environments import Environments
from workers.toolchains.resolving import resolve

BUILD_S = 120.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    toolchain_wheels.iree(folder, "9.1.0")
    for name, value in toolchain_wheels.variables(folder).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def lock(wheels: Path, tmp_path: Path) -> Lock:
    cache = tmp_path / "cache"
    return resolve("iree-9.1", find_toolchain("iree-9.1"), probe_toolchain(cache), cache)


@pytest.fixture
def agent(data: Path) -> Iterator[Agent]:
    agent = Agent(AgentConfig("n1", data))
    yield agent
    assert agent.stop(AFTER_ALL_TERMS, DEADLINE_S)


class Head:
    """What a head hears of one agent's builds."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.built = agent, dict[str, Toolchain]()
        self.node = agent.accept_leader(1, {}).node

    def told(self, lock: Lock) -> str | None:
        """What the node says of a lock: nothing, that it is here, or why not."""
        answer = self.agent.poll(1, wait_s=1.0)
        self.node = answer.node or self.node
        self.built |= {toolchain.lock: toolchain for toolchain in answer.built_toolchains}
        return self.node.toolchains.get(lock.digest)

    def until_told(self, lock: Lock) -> str:
        until(lambda: self.told(lock) is not None, "the node tells of the toolchain", BUILD_S)
        return self.told(lock) or ""


def test_a_toolchain_is_built_meanwhile_and_attempts_run_under_it(agent: Agent, lock: Lock) -> None:
    head = Head(agent)
    assert agent.build(1, [lock]) == {}
    assert head.until_told(lock) == ""
    assert head.built[lock.digest].versions["iree-base-compiler"] == "9.1.0"
    assert "--iree-hal-target-device" in head.built[lock.digest].compiler_flags
    assert agent.accept_leader(1, {}).node.toolchains == {lock.digest: ""}, "the next head is told too"
    attempt = replace(make_attempt(python("import handed_on")), toolchain=lock.digest)
    agent.start(1, [LaunchRequest(attempt)])
    until(lambda: agent.poll(1, wait_s=1.0).results, "the attempt has ended")
    (result,) = agent.poll(1).results
    assert result.versions["iree-base-compiler"] == "9.1.0"
    assert [process.exit_code for process in result.processes] == [0], result.failure


def test_a_toolchain_that_failed_says_why_and_is_built_when_it_is_asked_for_again(
    agent: Agent, lock: Lock, wheels: Path
) -> None:
    head, away = Head(agent), wheels.with_name("away")
    wheels.rename(away)
    wheels.mkdir()
    agent.build(1, [lock])
    assert "iree-base" in head.until_told(lock)
    away.rename(wheels)
    assert agent.build(1, [lock]) == {}, "what it said before is past"
    until(lambda: head.told(lock) == "", "it is built", BUILD_S)


def test_what_failed_long_ago_may_have_been_mended(data: Path, lock: Lock, wheels: Path) -> None:
    for wheel in wheels.iterdir():
        wheel.unlink()
    time_s = 0.0
    builds = ToolchainBuilder(Environments(data), lambda: None, lambda: time_s)
    builds.request([lock])
    until(lambda: builds.state, "it has failed", BUILD_S)
    time_s = FORGET_FAILURE_AFTER_S - 1
    assert builds.state[lock.digest]
    time_s = FORGET_FAILURE_AFTER_S + 1
    assert not builds.state
    builds.stop()


def test_an_attempt_whose_toolchain_was_removed_is_given_back_and_the_node_says_so(agent: Agent, lock: Lock) -> None:
    head = Head(agent)
    agent.build(1, [lock])
    assert head.until_told(lock) == ""
    assert Environments(agent._data).gc(0.0)
    attempt = replace(make_attempt(python("pass")), toolchain=lock.digest)
    agent.start(1, [LaunchRequest(attempt)])
    until(lambda: head.told(lock) is None, "the node says that it is gone")
    until(lambda: agent.poll(1).results, "the attempt has ended")
    (result,) = agent.poll(1).results
    assert result.failure is not None
    assert result.failure.kind is FailureKind.NODE_UNFIT


def test_two_agents_on_one_machine_build_a_toolchain_once(data: Path, lock: Lock) -> None:
    agents = [Agent(AgentConfig(name, data)) for name in ("n1", "n2")]
    try:
        heads = [Head(agent) for agent in agents]
        for agent in agents:
            agent.build(1, [lock])
        with ThreadPoolExecutor(2) as both:
            assert list(both.map(lambda head: head.until_told(lock), heads)) == ["", ""]
        assert len(list((data / "toolchains").glob("*/haloctl.json"))) == 1
        assert heads[0].built == heads[1].built
    finally:
        assert all(agent.stop(AFTER_ALL_TERMS, DEADLINE_S) for agent in agents)


def test_an_agent_that_stops_ends_what_it_builds(agent: Agent, data: Path, tmp_path: Path, wheels: Path) -> None:
    gate, cache = tmp_path / "gate", tmp_path / "cache"
    toolchain_wheels.iree(wheels, "9.2.0", gate)
    lock = resolve("iree-9.2", find_toolchain("iree-9.2"), probe_toolchain(cache), cache)
    gate.touch()
    agent.build(1, [lock])
    until(lambda: list((data / "toolchains").glob("*/bin/iree-compile")), "the packages are installed", BUILD_S)
    assert agent.stop(1, DEADLINE_S)
    until(lambda: not list((data / "toolchains").glob("*/bin")), "nothing is left of it")
