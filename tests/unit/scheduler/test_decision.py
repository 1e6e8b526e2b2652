"""Decisions are pure: what runs where, what waits and for which reason."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from db.store import OpenTask, RunningAttempt
from jobs.state import TaskState
from jobs.task import GIB, Node, Resources
from orchestrator.scheduler.decision import Block, Build, Queue, Start, Unqueue, Wait
from tests.queued import GPU, decided, gpus, node, on, running, started, task, waits


def test_a_task_whose_needs_are_done_is_queued_and_one_whose_need_failed_is_blocked() -> None:
    done, failed = task("01", state=TaskState.SUCCEEDED), task("02", state=TaskState.FAILED)
    ready = task("03", state=TaskState.PENDING, needs=("01",))
    hopeless = task("04", state=TaskState.PENDING, needs=("01", "02"))
    assert decided([done, failed, ready, hopeless], [node()]) == [
        Queue(ready),
        Block(hopeless, "compile (0-02) failed"),
    ]


def test_what_needs_a_file_that_is_made_again_waits_for_it_even_if_it_was_queued() -> None:
    maker = task("01", state=TaskState.RUNNING, lost="model.mlir")
    queued, pending = (task(name, needs=("01",), state=TaskState(name)) for name in ("queued", "pending"))
    wait, unqueued = decided([maker, queued, pending], [node()])
    assert unqueued == Unqueue(queued)
    assert wait == Wait(pending, "after compile makes model.mlir again", is_unschedulable=False)
    failed = replace(maker, state=TaskState.FAILED)
    assert decided([failed, pending], [node()]) == [
        Block(pending, "compile (0-01) failed without having made model.mlir again")
    ]


def test_a_task_that_no_node_could_ever_take_says_what_is_missing() -> None:
    stuck = task("01", gpus(8))
    assert decided([stuck], [node(cpu=8)]) == [
        Wait(stuck, "needs 8 x mi300x; the cluster has none", is_unschedulable=True)
    ]
    assert decided([stuck], [node(mi300x=4)]) == [
        Wait(stuck, "needs 8 x mi300x; the cluster has 4 on a node at most", is_unschedulable=True)
    ]
    assert decided([stuck], []) == [Wait(stuck, "needs a node; the cluster has none", is_unschedulable=True)]
    large = task("02", Resources(memory_bytes=64 * GIB))
    assert decided([large], [node()]) == [
        Wait(large, "needs 64 GiB of memory; the largest node has 16", is_unschedulable=True)
    ]
    both = task("03", Resources(cpus=8, devices=1, device_kind=GPU))
    assert decided([both], [node(mi300x=1), node("b", cpus=8)]) == [
        Wait(both, "needs 1 x mi300x, 8 cores, 1.0 GiB on one node; no node has all of it", is_unschedulable=True)
    ]


def test_what_waits_for_an_unschedulable_task_is_unschedulable_too() -> None:
    stuck, after = task("01", gpus(8)), task("02", state=TaskState.PENDING, needs=("01",))
    actions = decided([stuck, after], [node()])
    assert isinstance(actions[1], Wait)
    assert actions[1].is_unschedulable


def test_a_wait_is_said_once() -> None:
    holds, waiting = task("01", gpus(1), state=TaskState.RUNNING), task("02", gpus(1))
    after = task("03", state=TaskState.PENDING, needs=("02",))
    first = decided([holds, waiting, after], [node(mi300x=1)], running(holds, on("a", 0)))
    assert waits(first) == {
        "02": "needs 1 x mi300x, 1 core, 1.0 GiB free on a node, not reserved for an earlier task",
        "03": "after compile",
    }
    explained = [replace(task, waits_for=waits(first).get(task.subject)) for task in (holds, waiting, after)]
    assert decided(explained, [node(mi300x=1)], running(holds, on("a", 0))) == []


def test_devices_that_an_attempt_holds_are_not_given_away() -> None:
    holds, fresh = task("01", gpus(1), state=TaskState.RUNNING), task("02", gpus(1))
    actions = decided([holds, fresh], [node(mi300x=2)], running(holds, on("a", 0)))
    assert actions == [Start(fresh, (on("a", 1),))]


def test_a_quiet_task_runs_alone() -> None:
    noisy, quiet = task("01"), task("02", Resources(is_exclusive=True))
    first = decided([noisy, quiet], [node()])
    assert [type(action) for action in first] == [Start, Wait]
    alone = replace(quiet, state=TaskState.RUNNING)
    assert list(waits(decided([noisy, alone], [node()], running(alone, on("a"))))) == ["01"]


def test_memory_and_cores_are_hard_limits() -> None:
    large, small = task("01", Resources(memory_bytes=12 * GIB)), task("02", Resources(memory_bytes=8 * GIB))
    assert list(started(decided([large, small], [node()]))) == ["01"]
    wide, narrow = task("01", Resources(cpus=3)), task("02", Resources(cpus=2))
    assert list(started(decided([wide, narrow], [node()]))) == ["01"]


def test_small_tasks_go_to_the_fullest_node_that_has_room() -> None:
    nodes = [node("a", mi300x=8), node("b", mi300x=8)]
    holds, small, whole = task("01", gpus(1), state=TaskState.RUNNING), task("02", gpus(1)), task("03", gpus(8))
    actions = decided([holds, small, whole], nodes, running(holds, on("b", 5)))
    assert started(actions) == {"02": (on("b", 0),), "03": (on("a", *range(8)),)}


def test_turns_go_by_priority_then_by_what_a_user_used_then_by_submission() -> None:
    nodes = [node(mi300x=1)]
    early, late = task("early", gpus(1)), task("late", gpus(1), job=1)
    assert list(started(decided([early, late], nodes))) == ["early"]
    modest = replace(late, submitted_by="modest")
    assert list(started(decided([early, modest], nodes, usage={"someone": 5.0}))) == ["late"]
    urgent = replace(early, priority=1)
    assert list(started(decided([urgent, modest], nodes, usage={"someone": 5.0}))) == ["early"]


NEEDS = st.builds(
    Resources,
    cpus=st.integers(0, 4),
    memory_bytes=st.integers(0, 8).map(lambda gib: gib * GIB),
    devices=st.integers(0, 8),
    device_kind=st.just(GPU),
    is_exclusive=st.booleans(),
    nodes=st.sampled_from([1, 1, 1, 2, 3]),
)
NODES = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4).map(
    lambda sizes: [node(f"n{index}", cpus, mi300x=gpu) for index, (cpus, gpu) in enumerate(sizes)]
)
SECONDS = st.none() | st.integers(1, 90)
TASKS = st.lists(st.tuples(NEEDS, st.integers(0, 3), SECONDS), max_size=12).map(
    lambda needs: [task(f"{number:02}", need, job=job, expected_s=s) for number, (need, job, s) in enumerate(needs)]
)


def assert_nothing_is_shared(nodes: list[Node], attempts: list[RunningAttempt]) -> None:
    """Assert that attempts share no devices, cores or memory, and that an exclusive attempt has its nodes alone."""
    for each in nodes:
        local_attempts = [attempt for attempt in attempts if each.id in {place.node for place in attempt.places}]
        taken = [
            device
            for attempt in local_attempts
            for place in attempt.places
            if place.node == each.id
            for device in place.devices
        ]
        assert len(taken) == len(set(taken)) == sum(attempt.resources.devices for attempt in local_attempts)
        assert set(taken) <= set(each.devices)
        assert sum(attempt.resources.cpus for attempt in local_attempts) <= each.cpus
        assert sum(attempt.resources.memory_bytes for attempt in local_attempts) <= each.memory_bytes
        assert len(local_attempts) == 1 or not any(attempt.resources.is_exclusive for attempt in local_attempts)
    for attempt in attempts:
        assert len({place.node for place in attempt.places}) == len(attempt.places) == attempt.resources.nodes


@given(TASKS, NODES, st.data())
def test_nothing_is_given_away_twice_and_everything_is_accounted_for(
    tasks: list[OpenTask], nodes: list[Node], data: st.DataObject
) -> None:
    closed = dict.fromkeys(data.draw(st.sets(st.sampled_from([each.id for each in nodes]))), "it drains")
    known = [(each.id, device.kind, device.index) for each in nodes for device in each.devices]
    quarantined = dict.fromkeys(data.draw(st.sets(st.sampled_from(known))) if known else (), "it is hot")
    first = decided(tasks, nodes, closed=closed, quarantined=quarantined)
    assert sorted(action.task.id for action in first if not isinstance(action, Build)) == sorted(
        each.id for each in tasks
    )
    attempts = [running(action.task, *action.places) for action in first if isinstance(action, Start)]
    assert_nothing_is_shared(nodes, attempts)
    for place in (place for attempt in attempts for place in attempt.places):
        assert place.node not in closed
        assert not {(place.node, device.kind, device.index) for device in place.devices} & set(quarantined)

    reasons = {action.task.id: action for action in first if isinstance(action, Wait)}
    left = [
        replace(each, waits_for=reasons[each.id].reason, is_unschedulable=reasons[each.id].is_unschedulable)
        if each.id in reasons
        else replace(each, state=TaskState.RUNNING)
        for each in tasks
    ]
    assert decided(left, nodes, *attempts, closed=closed, quarantined=quarantined) == []


@given(TASKS, NODES)
def test_what_fits_the_cluster_starts_sooner_or_later(tasks: list[OpenTask], nodes: list[Node]) -> None:
    left, now_s = {each.id: each for each in tasks}, 0.0
    attempts: dict[str, tuple[float, RunningAttempt]] = {}
    for _ in range(len(tasks) + 1):
        actions = decided(list(left.values()), nodes, *(attempt for _, attempt in attempts.values()), at_s=now_s)
        for action in actions:
            if isinstance(action, Start):
                moved = running(action.task, *action.places, since_s=-now_s)
                attempts[action.task.id] = now_s + (action.task.expected_s or 60.0), moved
                del left[action.task.id]
        assert_nothing_is_shared(nodes, [attempt for _, attempt in attempts.values()])
        if not attempts:
            break
        next_id = min(attempts, key=lambda name: attempts[name][0])
        now_s = attempts.pop(next_id)[0]
    stuck = [action for action in decided(list(left.values()), nodes) if isinstance(action, Wait)]
    assert len(stuck) == len(left)
    assert all(wait.is_unschedulable for wait in stuck)


def test_a_node_that_came_back_with_fewer_devices_has_those_that_are_left() -> None:
    holds, fresh = task("01", gpus(2), state=TaskState.RUNNING), task("02", gpus(1))
    actions = decided([holds, fresh], [node(mi300x=2)], running(holds, on("a", 1, 7)))
    assert started(actions) == {"02": (on("a", 0),)}
