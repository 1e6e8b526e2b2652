"""Tasks with a toolchain run only on nodes that have it; what happens to them elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.store import StoredLock, UnresolvedToolchain
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Node, Pin, Place, Resources
from jobs.toolchains import DEFAULT, Lock
from orchestrator.scheduler.decision import Action, Build, Fail, Start, Wait
from tests.queued import BEGIN, GPU, decided, gpus, node, running, started, task, waits

NAME = "iree-3.12"
LOCK = Lock(NAME, ("iree-base-compiler==3.12.0",), {}, "3.11", is_over=True, source="")
KEPT = StoredLock(LOCK, LOCK.digest, frozenset({"--x"}), BEGIN)
LOCKS = {NAME: KEPT}
HERE = {LOCK.digest: ""}
BROKEN = {LOCK.digest: "toolchain iree-3.12 can't be built: no wheel\nfor this machine"}


def builds(actions: Sequence[Action]) -> Mapping[str, tuple[str, ...]]:
    return {action.toolchain: action.nodes for action in actions if isinstance(action, Build)}


def failures(actions: Sequence[Action]) -> Mapping[str, Failure]:
    return {action.task.subject: action.failure for action in actions if isinstance(action, Fail)}


def test_a_task_waits_until_its_toolchain_is_resolved_and_another_one_does_not() -> None:
    actions = decided([task("x", toolchain=NAME), task("y")], [node("a")])
    assert waits(actions) == {"x": "for toolchain iree-3.12 to be resolved"}
    assert list(started(actions)) == ["y"]


def test_a_task_says_why_resolving_its_toolchain_is_tried_again() -> None:
    actions = decided([task("x", toolchain=NAME)], [node("a")], unresolved={NAME: UnresolvedToolchain("no\nroute")})
    assert waits(actions) == {"x": "for toolchain iree-3.12 to be resolved; trying again: no route"}


def test_what_can_t_be_resolved_fails_the_task() -> None:
    failure = Failure(FailureKind.TOOLCHAIN, "no such version")
    actions = decided([task("x", toolchain=NAME)], [node("a")], unresolved={NAME: UnresolvedToolchain("", failure)})
    assert actions == [Fail(task("x", toolchain=NAME), failure)]


def test_all_nodes_that_could_take_a_task_are_asked_for_its_toolchain_and_no_others() -> None:
    nodes = [node("a", mi300x=8), node("b"), node("c", mi300x=8), node("d", mi300x=8)]
    actions = decided([task("x", gpus(8), toolchain=NAME)], nodes, locks=LOCKS, closed={"d": "it drains"})
    assert builds(actions) == {NAME: ("a", "c")}
    assert waits(actions) == {"x": "for toolchain iree-3.12 on node a, c"}


def test_a_task_starts_where_its_toolchain_is_while_the_others_build_it() -> None:
    nodes = [node("a", mi300x=8), node("b", mi300x=8, toolchains=HERE), node("c", mi300x=8, toolchains=BROKEN)]
    actions = decided([task("x", gpus(8), toolchain=NAME)], nodes, locks=LOCKS)
    assert [place.node for place in started(actions)["x"]] == ["b"]
    assert builds(actions) == {NAME: ("a",)}


def test_nothing_starts_before_a_node_has_told_what_its_compiler_offers() -> None:
    unknown = replace(KEPT, compiler_flags=None)
    actions = decided([task("x", toolchain=NAME)], [node("a", toolchains=HERE)], locks={NAME: unknown})
    assert (list(started(actions)), builds(actions)) == ([], {NAME: ("a",)})


def test_a_gang_waits_until_all_of_its_nodes_have_its_toolchain() -> None:
    nodes = [node("a", mi300x=8, toolchains=HERE), node("b", mi300x=8)]
    gang = task("x", gpus(8, nodes=2), toolchain=NAME)
    assert waits(decided([gang], nodes, locks=LOCKS)) == {"x": "for toolchain iree-3.12 on node b"}
    both = [node(name, mi300x=8, toolchains=HERE) for name in "ab"]
    assert len(started(decided([gang], both, locks=LOCKS))["x"]) == 2


def test_a_task_that_waits_for_a_build_keeps_no_devices_from_others() -> None:
    first, second = task("x", gpus(8), toolchain=NAME), task("y", gpus(8), job=1)
    actions = decided([first, second], [node("a", mi300x=8)], locks=LOCKS)
    assert list(started(actions)) == ["y"]


def test_a_build_that_failed_wherever_a_task_could_run_fails_it_with_the_words_of_one() -> None:
    nodes = [node("a"), node("b", mi300x=1, toolchains=BROKEN), node("c", mi300x=1, toolchains=BROKEN)]
    actions = decided([task("x", gpus(1), toolchain=NAME), task("y", toolchain=NAME)], nodes, locks=LOCKS)
    message = "node b: toolchain iree-3.12 can't be built: no wheel for this machine"
    assert failures(actions) == {"x": Failure(FailureKind.TOOLCHAIN, message, f"node b: {BROKEN[LOCK.digest]}")}
    assert waits(actions) == {"y": "for toolchain iree-3.12 on node a"}


def test_a_closed_node_that_may_build_it_is_waited_for() -> None:
    nodes = [node("a", toolchains=BROKEN), node("b")]
    actions = decided([task("x", toolchain=NAME)], nodes, locks=LOCKS, closed={"b": "it drains"})
    problem = "node a: toolchain iree-3.12 can't be built: no wheel for this machine"
    assert waits(actions) == {"x": f"for toolchain iree-3.12 on node b, which is cordoned; {problem}"}


def test_a_pinned_task_wants_the_toolchain_on_its_node_alone() -> None:
    pinned = task("x", gpus(1), pin=Pin("b", (0,)), toolchain=NAME)
    nodes = [node("a", mi300x=1, toolchains=HERE), node("b", mi300x=1)]
    actions = decided([pinned], nodes, locks=LOCKS)
    assert (waits(actions), builds(actions)) == ({"x": "for toolchain iree-3.12 on node b"}, {NAME: ("b",)})
    nodes[1] = node("b", mi300x=1, toolchains=BROKEN)
    assert list(failures(decided([pinned], nodes, locks=LOCKS))) == ["x"]


def test_a_node_that_failed_a_task_is_gone_back_to_only_where_no_other_can_build_its_toolchain() -> None:
    again = task("x", toolchain=NAME, avoids=("a",))
    nodes = [node("a", toolchains=HERE), node("b")]
    assert waits(decided([again], nodes, locks=LOCKS)) == {"x": "for toolchain iree-3.12 on node b"}
    nodes[1] = node("b", toolchains=BROKEN)
    assert [place.node for place in started(decided([again], nodes, locks=LOCKS))["x"]] == ["a"]


def test_what_the_cluster_lacks_is_said_before_anything_is_built() -> None:
    (action,) = decided([task("x", gpus(8), toolchain=NAME)], [node("a")], locks=LOCKS)
    assert isinstance(action, Wait)
    assert action.is_unschedulable
    assert action.reason == f"needs 8 x {GPU}; the cluster has none"


def test_nothing_is_built_beside_a_measurement_and_no_measurement_begins_beside_a_build() -> None:
    quiet, wanting = task("m", Resources(is_exclusive=True)), task("x", toolchain=NAME, job=1)
    measuring = running(task("n", Resources(is_exclusive=True), state=TaskState.RUNNING), Place("a"))
    actions = decided([quiet, wanting], [node("a"), node("b")], measuring, locks=LOCKS)
    assert builds(actions) == {NAME: ("b",)}
    assert waits(actions)["x"] == "for toolchain iree-3.12 on node a, b"
    assert "m" in waits(actions), "it comes first, and would put the build off for ever"
    nodes = [node("a", toolchains=HERE), node("b", toolchains=HERE)]
    assert [place.node for place in started(decided([quiet, wanting], nodes, measuring, locks=LOCKS))["m"]] == ["b"]


@pytest.mark.parametrize("count", [1, 5])
def test_many_nodes_are_named_in_part(count: int) -> None:
    actions = decided([task("x", toolchain=NAME)], [node(f"n{number}") for number in range(count)], locks=LOCKS)
    assert waits(actions)["x"].endswith("on node n0" if count == 1 else "on node n0, n1, n2 and 2 more")


STATES = st.sampled_from([{}, HERE, BROKEN])
NODES = st.lists(STATES, min_size=1, max_size=5).map(
    lambda states: [node(f"n{number}", mi300x=2, toolchains=state) for number, state in enumerate(states)]
)
WANTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), min_size=1, max_size=8)


@given(NODES, WANTS, st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_no_task_is_lost_or_started_without_its_toolchain(
    nodes: list[Node], wants: list[tuple[int, int, bool]], shut: set[str]
) -> None:
    tasks = [
        task(
            str(number),
            Resources(devices=devices, device_kind=GPU, nodes=count),
            toolchain=NAME if is_under else DEFAULT,
        )
        for number, (devices, count, is_under) in enumerate(wants)
    ]
    actions = decided(tasks, nodes, closed=dict.fromkeys(shut, "it drains"), locks=LOCKS)
    acted_on = sorted(action.task.id for action in actions if not isinstance(action, Build))
    assert acted_on == sorted(task.id for task in tasks)
    toolchains = {node.id: node.toolchains for node in nodes}
    for action in actions:
        if isinstance(action, Start) and action.task.toolchain == NAME:
            assert all(toolchains[place.node] == HERE for place in action.places)
        if isinstance(action, Fail):
            able = [node for node in nodes if node.toolchains != BROKEN]
            assert action.task.resources.nodes > len(able), "enough nodes can still build it"
        if isinstance(action, Build):
            assert not set(action.nodes) & shut
            assert all(toolchains[name] == {} for name in action.nodes)
    assert any(task.toolchain == NAME for task in tasks) or not builds(actions)
