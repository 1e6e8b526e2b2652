"""A cluster of real raylets: whatever part dies, stops or loses its state, attempts run on or are requeued in time."""

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from db.store import RunningAttempt
from jobs.errors import ClusterUnreachable
from jobs.state import FailureKind, TaskState
from jobs.task import Attempt, Device, Node, Place, Resources, TaskResult
from jobs.toolchains import Lock
from orchestrator.ray_executor import RayExecutor
from tests import toolchain_wheels
from tests.integration.attempts import DEADLINE_S, FINITE_INVOCATION, living, make_attempt, python, until
from tests.integration.ray_clusters import Cluster, running_cluster, stopped
from tests.other_users import can_enter, needs_root
from workers.agent import draining
from workers.agent.draining import Drain
from workers.toolchain_probe import probe_toolchain
from workers.toolchains.resolving import PYTHON

LEASE_S, MARGIN_S = 6.0, 3.0
BUILD_S = 120.0
IREE = ("iree-base-compiler", "iree-base-runtime")
ROOT = Path(__file__).parents[3]
WELL = python(FINITE_INVOCATION)

#: A head in a process of its own, which starts one attempt and can be killed.
OTHER_HEAD = """
import pickle, sys
from pathlib import Path
from orchestrator.ray_executor import RayExecutor
given, data, address, lease_s, term = pickle.loads(sys.stdin.buffer.read())
executor = RayExecutor(data, address, lease_s=lease_s)
executor.start_term(term, [])
while executor.start([given]):
    executor.collect(0.1)
while True:
    executor.collect(1.0)
"""


#: Two ranks that greet each other at the address that they are given.
MEET = """
import os, socket, time
rank, size = os.environ["PET_NODE_RANK"], os.environ["PET_NNODES"]
address = os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])
if rank == "0":
    server = socket.create_server(address)
    assert server.accept()[0].recv(9) == b"1 of 2"
else:
    for _ in range(12000):
        try:
            socket.create_connection(address).sendall(f"{rank} of {size}".encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.005)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        for name in ("n1", "n2"):
            cluster.join(name)
        yield cluster


@pytest.fixture
def executor(cluster: Cluster) -> Iterator[RayExecutor]:
    with leading(cluster) as executor:
        yield executor


_terms = iter(range(2, 1000))


@contextmanager
def leading(cluster: Cluster, *known: Attempt) -> Iterator[RayExecutor]:
    executor = RayExecutor(cluster.data, cluster.address, lease_s=LEASE_S, margin_s=MARGIN_S)
    term, taken_over = next(_terms), [as_known(attempt) for attempt in known]

    def leads() -> bool:
        """As a head does, try again while Ray is too busy to answer."""
        with suppress(ClusterUnreachable):
            executor.start_term(term, taken_over)
            return True
        return False

    try:
        until(leads, "Ray answers")
        yield executor
    finally:
        executor.detach()


def as_known(attempt: Attempt) -> RunningAttempt:
    now = datetime.now(UTC)
    task = attempt.id.rpartition("-")[0]
    places, state = attempt.places, TaskState.RUNNING
    return RunningAttempt(attempt.id, task, attempt.epoch, state, places, Resources(), now, attempt.timeout_s, "")


def on(attempt: Attempt, *nodes: str, devices: int = 0) -> Attempt:
    places = tuple(Place(node, tuple(Device("cpu", index) for index in range(devices))) for node in nodes)
    return replace(attempt, id=f"{uuid4().hex[:8]}-01-1", places=places)


def endless(marker: str, *nodes: str, devices: int = 0) -> Attempt:
    return on(
        make_attempt(python("print('up', flush=True); import time; time.sleep(600)", marker)), *nodes, devices=devices
    )


def started(executor: RayExecutor, *nodes: str) -> tuple[Attempt, str]:
    """Start an attempt and wait for its processes; returns it with the marker in their command lines."""
    marker = uuid4().hex
    attempt = endless(marker, *nodes)
    start(executor, attempt)
    until(lambda: len(living(marker)) == len(nodes), "the attempt's processes are up")
    return attempt, marker


def start(executor: RayExecutor, *attempts: Attempt) -> None:
    """Start attempts as soon as their nodes answer, and Ray has seen that the resources are free."""
    wanted = {place.node for attempt in attempts for place in attempt.places}
    until(
        lambda: wanted <= {node.id for node in nodes(executor)} and not executor.start(attempts),
        f"they run on {wanted}",
    )


def nodes(executor: RayExecutor) -> Sequence[Node]:
    try:
        return executor.nodes()
    except ClusterUnreachable:
        return []


def results(executor: RayExecutor, count: int = 1) -> list[TaskResult]:
    """The next results, looking at the nodes as the head does."""
    collected: list[TaskResult] = []
    deadline = time.monotonic() + 2 * DEADLINE_S
    while len(collected) < count:
        assert time.monotonic() < deadline, f"{len(collected)} of {count} results"
        nodes(executor)
        collected += executor.collect(0.2)
    return collected


def trouble(executor: RayExecutor) -> str:
    """Return the error that the head would see, if any."""
    try:
        executor.nodes()
        return ""
    except ClusterUnreachable as error:
        return str(error)


def kind(result: TaskResult) -> FailureKind | None:
    return result.failure.kind if result.failure else None


def one_kind(executor: RayExecutor, attempt: Attempt) -> FailureKind | None:
    (result,) = results(executor)
    assert (result.attempt, result.epoch) == (attempt.id, attempt.epoch)
    return kind(result)


def test_attempts_run_on_their_nodes_and_the_head_is_woken(executor: RayExecutor, cluster: Cluster) -> None:
    woken = threading.Event()
    executor.set_wakeup(woken.set)
    until(lambda: len(nodes(executor)) == 2, "both nodes answer")
    assert {(node.id, node.address) for node in nodes(executor)} == {("n1", "127.0.0.1"), ("n2", "127.0.0.1")}
    assert executor.cordoned() == {}
    attempts = [on(make_attempt(WELL), node) for node in ("n1", "n2", "n1")]
    start(executor, *attempts)
    assert executor.in_flight() == {attempt.id for attempt in attempts}
    collected: list[TaskResult] = []
    while len(collected) < len(attempts):
        assert woken.wait(DEADLINE_S)
        woken.clear()
        collected += executor.collect(0.0)
    assert {result.attempt: kind(result) for result in collected} == {attempt.id: None for attempt in attempts}
    assert (cluster.node_data("n2") / "logs" / f"{attempts[1].id}.log").exists()
    assert executor.collect(0.0) == []


@needs_root
def test_another_user_cannot_enter_the_folders_of_head_and_nodes(cluster: Cluster) -> None:
    for folder in cluster.folders():
        assert (folder / "session_latest").exists()
        assert not can_enter(folder)


def test_what_does_not_fit_is_refused_and_what_another_left_free_is_used(executor: RayExecutor) -> None:
    whole, other = endless("whole", "n1", devices=8), endless("other", "n1", devices=1)
    start(executor, whole)
    assert executor.start([whole]) == {}, "it has what it needs"
    (reason,) = executor.start([other]).values()
    assert "no free resources on n1" in reason
    assert executor.in_flight() == {whole.id}
    (reason,) = executor.start([endless("nowhere", "n9")]).values()
    assert reason == "node n9 does not answer"
    executor.cancel(whole.id)
    assert one_kind(executor, whole) is FailureKind.CANCELLED
    start(executor, other)
    executor.cancel(other.id)
    assert one_kind(executor, other) is FailureKind.CANCELLED


def test_a_gang_runs_on_all_of_its_nodes_as_ranks_that_find_each_other(executor: RayExecutor) -> None:
    gang = on(make_attempt(python(MEET, sys.executable), WELL), "n1", "n2")
    start(executor, gang)
    (result,) = results(executor)
    assert kind(result) is None
    assert len(result.processes) == 4
    assert {artifact.name for artifact in result.artifacts} >= {f"{gang.id}.log", f"rank1-{gang.id}.log"}


def test_cancelling_a_gang_or_failing_on_one_node_ends_it_everywhere(executor: RayExecutor) -> None:
    gang, marker = started(executor, "n1", "n2")
    executor.cancel(gang.id)
    assert one_kind(executor, gang) is FailureKind.CANCELLED
    assert living(marker) == []
    fail = "import os, sys, time\nif os.environ['PET_NODE_RANK'] == '1': sys.exit('error: no luck')\ntime.sleep(600)"
    gang = on(make_attempt(python(fail)), "n1", "n2")
    start(executor, gang)
    (result,) = results(executor)
    assert result.failure
    assert (kind(result), "no luck" in result.failure.message) == (FailureKind.TOOL_FAILED, True)


def test_logs_are_followed_through_the_agents(executor: RayExecutor) -> None:
    attempt, _ = started(executor, "n2")
    text = ""

    def has_come() -> bool:
        nonlocal text
        text += "".join(chunk.text for chunk in executor.read_logs([attempt.id]))
        return text.endswith("up\n")

    until(has_come, "the log has come")
    assert text.startswith("$ ")
    executor.read_logs([])
    text = ""
    until(has_come, "it comes from its beginning again")


def test_a_node_that_drains_finishes_or_hands_back(executor: RayExecutor, cluster: Cluster) -> None:
    attempt, marker = started(executor, "n1")
    data = cluster.node_data("n1")
    draining.request(data, Drain.FINISH)
    until(lambda: executor.collect(0.1) == [] and "n1" in executor.cordoned(), "the node is closed")
    assert not draining.is_drained(data)
    draining.request(data, Drain.REQUEUE)
    assert one_kind(executor, attempt) is FailureKind.REQUEUED
    assert living(marker) == []
    until(lambda: executor.collect(0.1) == [] and draining.is_drained(data), "the agent says that nothing is left")
    draining.withdraw(data)
    until(lambda: executor.collect(0.1) == [] and executor.cordoned() == {}, "the node is open again")


def test_what_ran_under_a_killed_agent_comes_back_at_once_and_its_gangs_end(
    executor: RayExecutor, cluster: Cluster
) -> None:
    attempt, marker = started(executor, "n1")
    gang, gangs_marker = started(executor, "n1", "n2")
    begin = time.monotonic()
    cluster.agent("n1").kill()
    collected = results(executor, 2)
    assert {result.attempt: kind(result) for result in collected} == dict.fromkeys(
        (attempt.id, gang.id), FailureKind.NODE_LOST
    )
    assert time.monotonic() - begin < LEASE_S + MARGIN_S + DEADLINE_S
    assert living(marker) == living(gangs_marker) == []
    following = on(make_attempt(WELL), "n1")
    start(executor, following)
    assert one_kind(executor, following) is None


def test_what_ran_under_a_stopped_agent_comes_back_when_its_lease_is_over(
    executor: RayExecutor, cluster: Cluster
) -> None:
    attempt, marker = started(executor, "n1")
    heard_at = time.monotonic() - executor._clients.silence_s("n1")
    with stopped(cluster.agent("n1")):
        assert one_kind(executor, attempt) is FailureKind.NODE_LOST
        assert time.monotonic() - heard_at > LEASE_S
        assert living(marker) == [], "its supervisors have ended it"
    following = on(make_attempt(WELL), "n1")
    start(executor, following)
    assert one_kind(executor, following) is None


def test_a_killed_raylet_loses_its_attempts_and_the_node_may_come_back(executor: RayExecutor, cluster: Cluster) -> None:
    attempt, marker = started(executor, "n2")
    cluster.raylet("n2").kill()
    until(lambda: [node.id for node in nodes(executor)] == ["n1"], "the node is gone")
    until(lambda: living(marker) == [], "nothing of it is left")
    assert executor.in_flight() == {attempt.id}, "that is not known yet"
    cluster.end_node("n2")
    cluster.join("n2")
    assert one_kind(executor, attempt) is FailureKind.NODE_LOST
    following = on(make_attempt(WELL), "n2")
    start(executor, following)
    assert one_kind(executor, following) is None


def test_the_next_head_takes_over_what_runs_and_ends_what_nobody_knows(cluster: Cluster) -> None:
    with leading(cluster) as first:
        known, marker = started(first, "n1")
        gang, _ = started(first, "n1", "n2")
        _, unknown_marker = started(first, "n2")
        ended, news = on(make_attempt(WELL), "n2"), threading.Event()
        first.set_wakeup(news.set)
        start(first, ended)
        assert news.wait(DEADLINE_S)
        first.detach()
    with leading(cluster, known, gang, ended, endless("never", "n1")) as second:
        collected = results(second, 2)
        assert sorted(str(kind(result)) for result in collected) == ["None", "node_lost"]
        assert second.in_flight() == {known.id, gang.id}
        until(lambda: living(unknown_marker) == [], "the unknown one has ended")
        assert living(marker)
        for adopted in (known, gang):
            second.cancel(adopted.id)
            assert one_kind(second, adopted) is FailureKind.CANCELLED


def test_heads_follow_each_other_also_those_that_were_killed_or_still_live(
    cluster: Cluster, executor: RayExecutor
) -> None:
    marker = uuid4().hex
    attempt = endless(marker, "n1")
    argv = [sys.executable, "-c", OTHER_HEAD]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        assert other.stdin
        other.stdin.write(pickle.dumps((attempt, cluster.data, cluster.address, LEASE_S, next(_terms))))
        other.stdin.close()
        until(lambda: living(marker), "the attempt runs")
        until(lambda: "another head leads" in trouble(executor), "who led before is told so")
        executor.detach()
        other.kill()
        assert other.wait() < 0
    with leading(cluster, attempt) as following:
        assert following.in_flight() == {attempt.id}
        following.cancel(attempt.id)
        assert one_kind(following, attempt) is FailureKind.CANCELLED


def test_attempts_survive_a_control_store_that_comes_back(executor: RayExecutor, cluster: Cluster) -> None:
    attempt, marker = started(executor, "n1")
    cluster.control_store().kill()
    until(lambda: trouble(executor), "it is seen")
    begin = time.monotonic()
    executor.collect(LEASE_S)
    assert time.monotonic() - begin >= LEASE_S, "nothing came"
    cluster.start()
    until(lambda: not trouble(executor), "the cluster is there again")
    assert living(marker)
    following = on(make_attempt(WELL), "n1")
    start(executor, following)
    assert one_kind(executor, following) is None
    executor.cancel(attempt.id)
    assert one_kind(executor, attempt) is FailureKind.CANCELLED


def test_a_wiped_cluster_loses_what_ran_and_is_joined_anew(executor: RayExecutor, cluster: Cluster) -> None:
    attempt, marker = started(executor, "n1")
    cluster.wipe()
    for name in ("n1", "n2"):
        cluster.join(name)
    assert one_kind(executor, attempt) is FailureKind.NODE_LOST
    assert living(marker) == []
    following = on(make_attempt(WELL), "n1")
    start(executor, following)
    assert one_kind(executor, following) is None


def lock_of(folder: Path, version: str, gate: Path | None = None) -> Lock:
    """A release of IREE that nodes find at the address in the lock."""
    wheels = dict(zip(IREE, toolchain_wheels.iree(folder, version, gate), strict=True))
    lines = tuple(f"{package} @ {wheel.as_uri()}" for package, wheel in wheels.items())
    versions = {**probe_toolchain(folder).versions, **dict.fromkeys(IREE, version)}
    return Lock(f"iree-{version}", lines, versions, PYTHON, is_over=True, source="")


def toolchain_reports(executor: RayExecutor, lock: Lock) -> dict[str, str | None]:
    """Return each node's problem with a toolchain: None while it is not built, empty once it is."""
    executor.collect(0.2)
    return {node.id: node.toolchains.get(lock.digest) for node in nodes(executor)}


def test_nodes_build_what_they_are_asked_for_and_a_gang_and_the_next_head_find_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    lock = lock_of(tmp_path, "9.1.0")
    with leading(cluster) as executor:
        until(lambda: toolchain_reports(executor, lock) == {"n1": None, "n2": None}, "both nodes answer", BUILD_S)
        executor.build_toolchains({"n1": [lock], "n2": [lock]})
        until(lambda: toolchain_reports(executor, lock) == {"n1": "", "n2": ""}, "both have built it", BUILD_S)
        assert executor.built_toolchains()[lock.digest].versions["iree-base-compiler"] == "9.1.0"
        gang = replace(
            on(make_attempt(python(f"import handed_on\n{FINITE_INVOCATION}")), "n1", "n2"), toolchain=lock.digest
        )
        start(executor, gang)
        (result,) = results(executor)
        assert (result.failure, [process.exit_code for process in result.processes]) == (None, [0, 0])
    with leading(cluster) as later:
        until(lambda: toolchain_reports(later, lock) == {"n1": "", "n2": ""}, "the next head is told", BUILD_S)
        later.build_toolchains({"n1": [lock]})
        until(
            lambda: toolchain_reports(later, lock) and lock.digest in later.built_toolchains(),
            "and of its compiler",
            BUILD_S,
        )


def test_an_agent_that_is_killed_while_it_builds_builds_when_it_is_back(
    executor: RayExecutor, cluster: Cluster, tmp_path: Path
) -> None:
    gate, folder = tmp_path / "gate", cluster.node_data("n1") / "toolchains"
    gate.touch()
    lock = lock_of(tmp_path, "9.2.0", gate)
    until(lambda: "n1" in toolchain_reports(executor, lock), "the node answers", BUILD_S)
    before = len(list(folder.glob("*/bin/iree-compile")))
    executor.build_toolchains({"n1": [lock]})
    until(lambda: len(list(folder.glob("*/bin/iree-compile"))) > before, "it is installed", BUILD_S)
    assert toolchain_reports(executor, lock)["n1"] is None
    cluster.agent("n1").kill()
    gate.unlink()

    def is_built() -> bool:
        """As a head does, ask again and again."""
        executor.build_toolchains({"n1": [lock]})
        return toolchain_reports(executor, lock).get("n1") == ""

    until(is_built, "the next agent builds it", BUILD_S)


def test_closing_ends_what_runs_and_the_agents(executor: RayExecutor, cluster: Cluster) -> None:
    _, marker = started(executor, "n1")
    agent = cluster.agent("n1")
    executor.close()
    assert (living(marker), executor.in_flight()) == ([], set())
    until(lambda: not agent.is_running(), "the agent has ended")
