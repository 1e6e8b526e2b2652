"""Placement restrictions: pins, cordoned nodes, quarantined devices, nodes that failed the task."""

import pytest

from jobs.state import TaskState
from jobs.task import Pin, Resources
from orchestrator.scheduler.decision import Wait
from tests.queued import GPU, decided, gpus, node, on, running, started, task, waits

TWO = [node("a", mi300x=8), node("b", mi300x=8)]
H100 = Resources(devices=1, device_kind="h100")


def test_a_pinned_task_runs_there_alone() -> None:
    there, device = task("01", gpus(2), pin=Pin("b")), task("02", gpus(1), pin=Pin("a", (5,)))
    assert started(decided([there, device], TWO)) == {"01": (on("b", 0, 1),), "02": (on("a", 5),)}


def test_a_pinned_task_waits_for_its_device_while_others_are_free() -> None:
    holds, pinned = task("01", gpus(1), state=TaskState.RUNNING), task("02", gpus(1), job=1, pin=Pin("a", (5,)))
    actions = decided([holds, pinned], TWO, running(holds, on("a", 5)))
    assert waits(actions) == {
        "02": "needs 1 x mi300x, 1 core, 1.0 GiB free on a/mi300x:5, not reserved for an earlier task"
    }


def test_a_task_that_is_pinned_to_several_devices_runs_on_these_of_them() -> None:
    holds, pair = task("01", gpus(1), state=TaskState.RUNNING), task("02", gpus(2), job=1, pin=Pin("a", (2, 5)))
    assert started(decided([holds, pair], TWO, running(holds, on("a", 4)))) == {"02": (on("a", 2, 5),)}
    assert waits(decided([holds, pair], TWO, running(holds, on("a", 5)))) == {
        "02": "needs 2 x mi300x, 1 core, 1.0 GiB free on a/mi300x:2,5, not reserved for an earlier task"
    }


def test_a_device_that_a_pinned_task_waits_for_is_the_last_to_be_given_away() -> None:
    holds = task("01", Resources(memory_bytes=0), state=TaskState.RUNNING)
    quiet = Resources(devices=1, device_kind=GPU, is_exclusive=True)
    pinned, later = task("02", quiet, job=1, pin=Pin("a", (0,))), task("03", gpus(1), job=2, expected_s=30)
    actions = decided([holds, pinned, later], [node(mi300x=2)], running(holds, on("a")))
    assert started(actions) == {"03": (on("a", 1),)}


@pytest.mark.parametrize(
    ("pin", "need", "reason"),
    [
        (Pin("z"), gpus(1), "is pinned to node z, which is not up or not known"),
        (Pin("c", (8,)), gpus(1), "is pinned to c/mi300x:8; node c has only 0, 1"),
        (Pin("c", (0,)), H100, "is pinned to c/h100:0; node c has no h100"),
        (Pin("a"), gpus(9), "is pinned to node a: needs 9 x mi300x; it has 8 on a node at most"),
        (Pin("c", (1, 2)), gpus(2), "is pinned to c/mi300x:1,2; node c has only 0, 1"),
        (Pin("a", (0,)), gpus(2), "needs 2 x mi300x, and is pinned to a/mi300x:0 alone"),
        (Pin("a"), gpus(1, nodes=2), "needs 2 nodes, and is pinned to node a alone"),
    ],
)  # fmt: skip
def test_a_pin_that_can_t_be_met_is_unschedulable(pin: Pin, need: Resources, reason: str) -> None:
    pinned = task("01", need, pin=pin)
    assert decided([pinned], [*TWO, node("c", mi300x=2)]) == [Wait(pinned, reason, is_unschedulable=True)]


def test_closed_nodes_and_quarantined_devices_get_nothing_and_a_wait_says_so() -> None:
    whole, single = task("01", gpus(8)), task("02", gpus(1))
    actions = decided([whole, single], TWO, closed={"b": "draining"}, quarantined={("a", GPU, 3): "3 GiB still held"})
    assert started(actions) == {"02": (on("a", 0),)}
    reason = "needs 8 x mi300x; node b is cordoned: draining, a/mi300x:3 is quarantined: 3 GiB still held"
    assert [action for action in actions if isinstance(action, Wait)] == [Wait(whole, reason, is_unschedulable=False)]


def test_the_wait_of_a_pinned_task_says_what_is_wrong_with_its_place() -> None:
    to_node, to_device = task("01", gpus(1), pin=Pin("a")), task("02", gpus(1), pin=Pin("b", (3,)))
    bad = {("b", GPU, 3): "too hot", ("b", GPU, 4): "too hot"}
    assert waits(decided([to_node, to_device], TWO, closed={"a": "draining"}, quarantined=bad)) == {
        "01": "needs 1 x mi300x on node a; node a is cordoned: draining",
        "02": "needs 1 x mi300x on b/mi300x:3; b/mi300x:3 is quarantined: too hot",
    }
    beside = task("01", gpus(6), pin=Pin("b"))
    assert started(decided([beside], TWO, quarantined=bad)) == {"01": (on("b", 0, 1, 2, 5, 6, 7),)}


def test_many_obstacles_are_counted() -> None:
    closed = dict.fromkeys("abcde", "draining")
    nodes = [node(name, mi300x=8) for name in "abcde"]
    reason = waits(decided([task("01", gpus(8))], nodes, closed=closed))["01"]
    assert reason.endswith("node c is cordoned: draining and 2 more")


def test_a_node_that_failed_a_task_is_taken_only_where_no_other_could() -> None:
    again = task("01", gpus(8), avoids=("a",))
    assert started(decided([again], TWO)) == {"01": (on("b", *range(8)),)}
    holds = task("02", gpus(1), state=TaskState.RUNNING)
    assert list(waits(decided([holds, again], TWO, running(holds, on("b", 0))))) == ["01"]
    assert started(decided([again], [TWO[0], node("b", mi300x=4)])) == {"01": (on("a", *range(8)),)}
    assert started(decided([again], TWO, closed={"b": "draining"})) == {"01": (on("a", *range(8)),)}
    gang = task("01", gpus(8, nodes=2), avoids=("a",))
    assert started(decided([gang], TWO)) == {"01": (on("b", *range(8)), on("a", *range(8)))}
