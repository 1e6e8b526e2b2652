"""Compared tasks run after their reference, and on the same devices."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.store import StoredLock
from jobs.state import ENDED, TaskState
from jobs.task import Device, Node, Pin, Place
from jobs.toolchains import Lock
from orchestrator.scheduler.decision import Wait
from tests.queued import BEGIN, GPU, decided, gpus, node, on, running, started, task, waits

TWO = [node("a", mi300x=8), node("b", mi300x=8)]
NAME = "iree-3.12"
LOCK = Lock(NAME, ("iree-base-compiler==3.12.0",), {}, "3.11", is_over=True, source="")
LOCKS = {NAME: StoredLock(LOCK, LOCK.digest, frozenset(), BEGIN)}
THERE = {"0-01": (on("b", 5),)}
DONE = task("01", gpus(1), state=TaskState.SUCCEEDED)
COMPARED = task("02", gpus(1), after="01")


@pytest.mark.parametrize("state", [TaskState.PENDING, TaskState.QUEUED, TaskState.RUNNING, TaskState.CANCELLING])
def test_it_waits_until_what_it_is_compared_with_has_ended(state: TaskState) -> None:
    earlier = task("01", gpus(1), state=state, needs=("00",))
    made = task("00", state=TaskState.RUNNING if state is TaskState.PENDING else TaskState.SUCCEEDED)
    actions = decided([made, earlier, COMPARED], TWO, *([running(earlier, on("b", 5))] if state == "running" else []))
    assert "02" not in started(actions)
    assert waits(actions)["02"] == "after compile of 01, which it is compared with"


@pytest.mark.parametrize("state", [TaskState.SUCCEEDED, TaskState.CACHED])
def test_it_runs_where_that_ran(state: TaskState) -> None:
    actions = decided([replace(DONE, state=state), COMPARED], TWO, ran=THERE)
    assert started(actions) == {"02": (on("b", 5),)}


def test_it_waits_for_those_devices_while_others_are_free_and_they_are_kept_for_it() -> None:
    holds, later = task("03", gpus(1), state=TaskState.RUNNING, job=1), task("04", gpus(8), job=2)
    actions = decided([DONE, COMPARED, holds, later], TWO[1:], running(holds, on("b", 5)), ran=THERE)
    assert started(actions) == {}
    need = "1 x mi300x, 1 core, 1.0 GiB"
    assert waits(actions)["02"] == f"needs {need} free on b/mi300x:5, where the task it is compared with ran"


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.BLOCKED, TaskState.CANCELLED])
def test_what_it_is_compared_with_may_fail_and_it_runs_all_the_same(state: TaskState) -> None:
    assert started(decided([replace(DONE, state=state), COMPARED], TWO)) == {"02": (on("a", 0),)}


def test_what_was_done_a_moment_ago_is_looked_up_first() -> None:
    assert list(waits(decided([DONE, COMPARED], TWO))) == ["02"]


def test_where_that_ran_may_be_gone_and_it_runs_anywhere() -> None:
    tasks = [DONE, COMPARED]
    anywhere, beside = {"02": (on("a", 0),)}, {"02": (on("b", 0),)}  # the node with less room goes first
    assert started(decided(tasks, TWO[:1], ran=THERE)) == anywhere
    assert started(decided(tasks, [TWO[0], node("b", mi300x=5)], ran=THERE)) == beside
    assert started(decided(tasks, TWO, ran=THERE, closed={"b": "draining"})) == anywhere
    assert started(decided(tasks, TWO, ran=THERE, quarantined={("b", GPU, 5): "too hot"})) == beside
    assert started(decided([DONE, replace(COMPARED, avoids=("b",))], TWO, ran=THERE)) == anywhere
    assert started(decided(tasks, TWO, ran=THERE, quarantined={("b", GPU, 4): "too hot"})) == {"02": (on("b", 5),)}


def test_what_is_compared_with_an_unschedulable_task_is_unschedulable_too() -> None:
    stuck, compared = task("01", gpus(9)), task("02", gpus(9), after="01")
    why = "needs 9 x mi300x; the cluster has 8 on a node at most"
    assert decided([stuck, compared], TWO) == [
        Wait(stuck, why, is_unschedulable=True),
        Wait(compared, why, is_unschedulable=True),
    ]


def test_a_job_that_says_where_it_measures_is_not_moved() -> None:
    pinned = replace(COMPARED, pin=Pin("a", (3,)))
    assert started(decided([DONE, pinned], TWO, ran=THERE)) == {"02": (on("a", 3),)}


def test_several_devices_are_the_same_several_and_a_card_is_known_by_its_serial() -> None:
    def cards(*serials: str) -> tuple[Device, ...]:
        return tuple(Device(GPU, index, serial) for index, serial in enumerate(serials))

    def node_of(*serials: str) -> Node:
        return replace(node("b"), devices=cards(*serials))

    two = replace(COMPARED, resources=gpus(2))
    was = cards("x", "y", "z", "w")
    ran = {"0-01": (Place("b", (was[1], was[3])),)}
    placements = started(decided([DONE, two], [node_of("x", "y", "z", "w")], ran=ran))
    assert placements["02"] == (Place("b", (was[1], was[3])),)
    swapped = started(decided([DONE, two], [TWO[0], node_of("w", "x", "z", "y")], ran=ran))
    assert [device.serial for device in swapped["02"][0].devices] == ["y", "w"]
    replaced = started(decided([DONE, two], [node_of("x", "new", "z", "w")], ran=ran))
    assert [device.serial for device in replaced["02"][0].devices] == ["x", "new"]


def test_under_a_toolchain_it_runs_there_once_that_node_has_it_and_elsewhere_if_it_can_t() -> None:
    under, had, broken = task("02", gpus(1), toolchain=NAME, after="01"), {LOCK.digest: ""}, {LOCK.digest: "no wheel"}
    tasks, a = [DONE, under], node("a", mi300x=8, toolchains=had)
    building = decided(tasks, [a, node("b", mi300x=8)], ran=THERE, locks=LOCKS)
    assert waits(building) == {"02": "for toolchain iree-3.12 on node b"}
    built = decided(tasks, [a, node("b", mi300x=8, toolchains=had)], ran=THERE, locks=LOCKS)
    assert started(built) == {"02": (on("b", 5),)}
    failed = decided(tasks, [a, node("b", mi300x=8, toolchains=broken)], ran=THERE, locks=LOCKS)
    assert started(failed) == {"02": (on("a", 0),)}


def test_a_toolchain_is_built_while_what_it_is_compared_with_runs() -> None:
    earlier = replace(DONE, state=TaskState.RUNNING)
    under = task("02", gpus(1), toolchain=NAME, after="01")
    actions = decided([earlier, under], TWO, running(earlier, on("b", 5)), locks=LOCKS)
    assert any(getattr(action, "toolchain", "") == NAME for action in actions)
    assert waits(actions)["02"] == "after compile of 01, which it is compared with"


def test_devices_that_history_is_of_go_first_where_they_are_free_and_nobody_waits_for_them() -> None:
    nightly = task("01", gpus(1), affinity=((on("b", 5),), (on("a", 2),)))
    other = task("02", gpus(1), job=1, state=TaskState.RUNNING)
    assert started(decided([nightly], TWO)) == {"01": (on("b", 5),)}
    assert started(decided([nightly, other], TWO, running(other, on("b", 5)))) == {"01": (on("a", 2),)}
    wide = replace(other, resources=gpus(8))
    assert started(decided([nightly, wide], TWO, running(wide, on("b", *range(8))))) == {"01": (on("a", 2),)}
    both = (running(replace(other, id="1-03"), on("a", 2)), running(other, on("b", 5)))
    assert len(started(decided([nightly, other, replace(other, id="1-03")], TWO, *both))) == 1
    assert started(decided([nightly], TWO, closed={"b": "draining"})) == {"01": (on("a", 2),)}
    assert started(decided([replace(nightly, avoids=("b", "a"))], TWO)) == {"01": (on("a", 0),)}


def test_two_with_the_same_history_share_nothing() -> None:
    tasks = [task(name, gpus(1), affinity=((on("b", 5),),)) for name in ("01", "02")]
    assert started(decided(tasks, TWO)) == {"01": (on("b", 5),), "02": (on("a", 0),)}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2), st.sampled_from(TaskState)), min_size=2, max_size=10))
def test_all_of_it_ends_and_nothing_begins_before_what_it_is_compared_with_has_ended(
    chosen: list[tuple[int, int, TaskState]],
) -> None:
    """Whatever is compared with what, on two nodes of two devices, however each comes out."""
    names = [f"{number:02}" for number in range(len(chosen))]
    tasks = {
        name: task(name, gpus(count), after=names[earlier] if earlier < number else None)
        for number, (name, (earlier, count, _)) in enumerate(zip(names, chosen, strict=True))
    }
    ends = {
        name: state if state in ENDED else TaskState.SUCCEEDED
        for name, (_, _, state) in zip(names, chosen, strict=True)
    }
    ran: dict[str, tuple[Place, ...]] = {}
    for _ in names:
        begun = started(decided(list(tasks.values()), [node("a", mi300x=2), node("b", mi300x=2)], ran=ran))
        for name, places in begun.items():
            earlier = tasks[name].after
            assert earlier is None or tasks[earlier.removeprefix("0-")].state in ENDED
            if earlier in ran and len(ran[earlier][0].devices) == len(places[0].devices):
                assert places == ran[earlier]
            tasks[name] = replace(tasks[name], state=ends[name])
            if ends[name] in (TaskState.SUCCEEDED, TaskState.CACHED):
                ran[tasks[name].id] = places
    assert all(row.state in ENDED for row in tasks.values())
