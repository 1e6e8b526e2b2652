"""An agent whose artifact store is at a URL."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.state import FailureKind
from jobs.task import Artifact, TaskResult
from tests.integration.attempts import DEADLINE_S, make_attempt, python, until
from tests.integration.object_stores import Proxy, Site, s3_port, s3_site
from workers.agent import store_mark
from workers.agent.agent import AFTER_ALL_TERMS, Agent
from workers.agent.protocol import AgentConfig, LaunchRequest
from workers.attempts.folders import log_path

__all__ = ["s3_port"]

COMPILE = {"target": "cpu"}
#: What a compiler would do, in a second; it shows what it sees, and the input that it was given.
WORK = """
import os, time
print(sorted(os.environ), open('inputs/export/model.mlir').read(), flush=True)
time.sleep(float({seconds}))
open('outputs/model.vmfb', 'w').write('program')
"""


@pytest.fixture
def remote(s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with s3_site(s3_port, tmp_path, monkeypatch) as site:
        yield site


@pytest.fixture
def agent(remote: Site, tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(AgentConfig("n1", tmp_path / "data", remote.url, store_mark.make(remote.url)))
    yield agent
    assert agent.stop(AFTER_ALL_TERMS, DEADLINE_S)


def proxy_of(site: Site) -> Proxy:
    assert site.line
    return site.line


def until_open(agent: Agent) -> None:
    until(lambda: agent.poll(1).cordon_reason is None, "the store is open")


def one_result(agent: Agent) -> TaskResult:
    """The only one there is; a poll may return before it, to tell of the store."""
    until(lambda: agent.poll(1).results, "it has a result")
    (result,) = agent.poll(1).results
    return result


def test_its_attempts_read_and_publish_there_and_see_none_of_its_credentials(
    agent: Agent, remote: Site, tmp_path: Path
) -> None:
    (tmp_path / "model.mlir").write_text("module {}")
    mlir = remote.store().put(tmp_path / "model.mlir", "mlir")
    attempt = make_attempt(
        python(WORK.format(seconds=0)), stage="compile", settings=COMPILE, inputs={"export": (mlir,)}
    )
    agent.start(1, [LaunchRequest(attempt)])
    result = one_result(agent)
    log = log_path(tmp_path / "data", attempt.id).read_text()
    assert "module {}" in log
    assert "AWS_" not in log
    assert "hush-hush" not in repr(result) + log
    assert {artifact.kind for artifact in result.artifacts} == {"vmfb", "log"}
    assert remote.store("another-cache").has_all(result.artifacts)


def test_what_was_made_while_the_store_was_away_is_published_when_it_is_back(
    agent: Agent, remote: Site, tmp_path: Path
) -> None:
    (tmp_path / "model.mlir").write_text("module {}")
    mlir = remote.store().put(tmp_path / "model.mlir", "mlir")
    until_open(agent)
    attempt = make_attempt(
        python(WORK.format(seconds=1)), stage="compile", settings=COMPILE, inputs={"export": (mlir,)}
    )
    agent.start(1, [LaunchRequest(attempt)])
    until(lambda: "module {}" in _text(log_path(tmp_path / "data", attempt.id)), "it has begun")
    proxy_of(remote).cut()
    back = threading.Timer(5.0, proxy_of(remote).mend)
    back.start()
    result = one_result(agent)
    back.join()
    assert remote.store("another-cache").has_all(result.artifacts)
    assert "vmfb" in {artifact.kind for artifact in result.artifacts}


def test_a_node_whose_store_cannot_be_reached_is_closed_until_it_can(agent: Agent, remote: Site) -> None:
    until_open(agent)
    proxy_of(remote).cut()
    lost = make_attempt(python(""), inputs={"export": (_unknown(),)})
    agent.start(1, [LaunchRequest(lost)])
    result = one_result(agent)
    assert result.failure
    assert result.failure.kind is FailureKind.STORE_UNUSABLE
    assert result.failure.message.startswith(f"artifact store {remote.url}: ")
    until(
        lambda: (agent.poll(1).cordon_reason or "").startswith(f"artifact store {remote.url}: "),
        "it says why it is closed",
    )
    proxy_of(remote).mend()
    until_open(agent)


def test_another_store_is_not_the_heads(remote: Site, tmp_path: Path) -> None:
    agent = Agent(AgentConfig("n1", tmp_path / "data", remote.url, "the mark of another"))
    try:
        until(lambda: "not the head's artifact store" in (agent.poll(1).cordon_reason or ""), "it says so")
    finally:
        agent.stop(AFTER_ALL_TERMS, DEADLINE_S)


def _unknown() -> Artifact:
    return Artifact("model.mlir", "mlir", "0" * 64, 5)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
