"""Decisions are pure: what runs where, what waits and for what."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from db.store import Need, OpenTask, RunningAttempt, Snapshot
from jobs.state import TaskState
from jobs.task import GIB, Device, Node, Place, Resources
from orchestrator.scheduler import Block, Queue, Start, Wait, decide

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def node(name: str = "a", cpus: int = 4, memory_gib: int = 16, **devices: int) -> Node:
    found = tuple(Device(kind, index) for kind, count in devices.items() for index in range(count))
    return Node(name, name, cpus, memory_gib * GIB, found)


def task(
    name: str,
    need: Resources = Resources(),  # noqa: B008 - frozen
    *,
    state: TaskState = TaskState.QUEUED,
    needs: tuple[str, ...] = (),
    job: int = 0,
) -> OpenTask:
    return OpenTask(
        id=f"{job}-{name}",
        job=str(job),
        stage="compile",
        subject=name,
        state=state,
        epoch=0,
        needed=tuple(Need(f"{job}-{other}", "export") for other in needs),
        settings={},
        resources=need,
        waits_for=None,
        is_stuck=False,
        submitted_at=BEGIN + timedelta(seconds=job),
        submitted_by="someone",
        timeout_s=60.0,
        reuse=True,
    )


def running(of: OpenTask, on: str, *devices: Device) -> RunningAttempt:
    places = (Place(on, devices),)
    return RunningAttempt(f"{of.id}-1", of.id, 1, TaskState.RUNNING, places, of.resources, BEGIN, 60.0, "")


def gpus(count: int) -> Resources:
    return Resources(devices=count, device_kind="mi300x")


def test_a_task_whose_needs_are_done_is_queued_and_one_whose_need_failed_is_blocked() -> None:
    done, failed = task("01", state=TaskState.SUCCEEDED), task("02", state=TaskState.FAILED)
    ready = task("03", state=TaskState.PENDING, needs=("01",))
    hopeless = task("04", state=TaskState.PENDING, needs=("01", "02"))
    actions = decide(Snapshot((done, failed, ready, hopeless), ()), [node()])
    assert actions == [Queue(ready), Block(hopeless, "compile (0-02) failed")]


def test_a_task_that_no_node_could_ever_take_says_what_is_missing() -> None:
    stuck = task("01", gpus(8))
    assert decide(Snapshot((stuck,), ()), [node(cpu=8)]) == [
        Wait(stuck, "needs 8 x mi300x; the cluster has none", is_stuck=True)
    ]
    assert decide(Snapshot((stuck,), ()), [node(mi300x=4)]) == [
        Wait(stuck, "needs 8 x mi300x; the cluster has 4 on a node at most", is_stuck=True)
    ]
    large = task("02", Resources(memory_bytes=64 * GIB))
    assert decide(Snapshot((large,), ()), [node()]) == [
        Wait(large, "needs 64 GiB of memory; the largest node has 16", is_stuck=True)
    ]


def test_what_waits_for_a_stuck_task_is_stuck_too() -> None:
    stuck, after = task("01", gpus(8)), task("02", state=TaskState.PENDING, needs=("01",))
    actions = decide(Snapshot((stuck, after), ()), [node()])
    assert isinstance(actions[1], Wait)
    assert actions[1].is_stuck


def test_devices_that_an_attempt_holds_are_not_given_away() -> None:
    holds = task("01", gpus(1), state=TaskState.RUNNING)
    fresh = task("02", gpus(1))
    snapshot = Snapshot((holds, fresh), (running(holds, "a", Device("mi300x", 0)),))
    assert decide(snapshot, [node(mi300x=2)]) == [Start(fresh, (Place("a", (Device("mi300x", 1),)),))]


def test_a_quiet_task_runs_alone() -> None:
    noisy, quiet = task("01"), task("02", Resources(is_quiet=True))
    first = decide(Snapshot((noisy, quiet), ()), [node()])
    assert [type(action) for action in first] == [Start, Wait]
    alone = replace(quiet, state=TaskState.RUNNING)
    second = decide(Snapshot((noisy, alone), (running(alone, "a"),)), [node()])
    assert [type(action) for action in second] == [Wait]


def test_small_tasks_of_later_jobs_do_not_starve_a_large_one() -> None:
    holds = task("01", gpus(1), state=TaskState.RUNNING)
    large, small = task("02", gpus(8), job=1), task("03", gpus(1), job=2)
    snapshot = Snapshot((holds, large, small), (running(holds, "a", Device("mi300x", 0)),))
    assert [type(action) for action in decide(snapshot, [node(mi300x=8)])] == [Wait, Wait]
    elsewhere = decide(snapshot, [node(mi300x=8), node("b", mi300x=1)])
    assert Start(small, (Place("b", (Device("mi300x", 0),)),)) in elsewhere


NEEDS = st.builds(
    Resources,
    cpus=st.integers(0, 4),
    memory_bytes=st.integers(0, 8).map(lambda gib: gib * GIB),
    devices=st.integers(0, 8),
    device_kind=st.just("mi300x"),
    is_quiet=st.booleans(),
)
NODES = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=4).map(
    lambda sizes: [node(f"n{index}", cpus, mi300x=gpu) for index, (cpus, gpu) in enumerate(sizes)]
)


@given(st.lists(st.tuples(NEEDS, st.integers(0, 3)), max_size=12), NODES)
def test_nothing_is_given_away_twice_and_everything_is_accounted_for(
    needs: list[tuple[Resources, int]], nodes: list[Node]
) -> None:
    tasks = tuple(task(f"{number:02}", need, job=job) for number, (need, job) in enumerate(needs))
    actions = decide(Snapshot(tasks, ()), nodes)
    assert sorted(action.task.id for action in actions) == sorted(each.id for each in tasks)
    for each in nodes:
        starts = [action for action in actions if isinstance(action, Start) and action.places[0].node == each.id]
        taken = [device for start in starts for device in start.places[0].devices]
        assert len(taken) == len(set(taken)) == sum(start.task.resources.devices for start in starts)
        assert set(taken) <= set(each.devices)
        assert sum(start.task.resources.cpus for start in starts) <= each.cpus
        assert sum(start.task.resources.memory_bytes for start in starts) <= each.memory_bytes
        assert len(starts) == 1 or not any(start.task.resources.is_quiet for start in starts)
    assert decide(Snapshot(tasks, ()), nodes) == actions
