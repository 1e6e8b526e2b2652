"""The cost and the quality of decisions. No time is asserted; `make bench` prints."""

import random
import statistics
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from db.store import OpenTask, RunningAttempt, Snapshot
from jobs.state import TaskState
from jobs.task import GIB, Device, Node, Place, Resources
from orchestrator.scheduler.decision import Wait, decide
from tests.performance.simulation import FLOOD, Simulation, World
from tests.queued import BEGIN, GPU, task

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(900)]

NEEDS = (
    Resources(4, 24 * GIB, 1, GPU),
    Resources(16, 200 * GIB, 8, GPU),
    Resources(16, 200 * GIB, 8, GPU, nodes=2),
    Resources(96, 1500 * GIB),
)


def test_one_decision_with_ten_thousand_queued_tasks_and_a_thousand_full_nodes() -> None:
    chance = random.Random(1)
    nodes = [
        Node(f"n{number:04}", "", 128, 2048 * GIB, tuple(Device(GPU, index) for index in range(8)))
        for number in range(1000)
    ]
    tasks = tuple(_queued(number, chance) for number in range(10_000))
    attempts = tuple(_running(node, device, chance) for node in nodes for device in node.devices)
    snapshot = Snapshot(tasks, attempts, usage={f"user{number}": float(number) for number in range(20)})
    first = decide(snapshot, nodes, {}, BEGIN)
    reasons = {action.task.id: action.reason for action in first if isinstance(action, Wait)}
    explained = replace(snapshot, tasks=tuple(replace(task, waits_for=reasons.get(task.id)) for task in tasks))
    bare_s, decision_s = [], []
    for _ in range(15):
        bare_s.append(_timed(lambda: sorted(tasks, key=lambda task: (task.priority, task.submitted_by, task.id))))
        decision_s.append(_timed(lambda: decide(explained, nodes, {}, BEGIN)))
    decision, bare = statistics.median(decision_s), statistics.median(bare_s)
    print(
        f"\none decision, 10,000 queued tasks, 1,000 nodes, 8,000 attempts: {decision * 1e3:.0f} ms (fastest "
        f"{min(decision_s) * 1e3:.0f}), {decision / bare:.1f} x sorting the tasks ({bare * 1e3:.1f} ms)"
    )


def _queued(number: int, chance: random.Random) -> OpenTask:
    """One of ten in its job."""
    need = chance.choices(NEEDS, (70, 15, 5, 10))[0]
    queued = task(f"{number:05}", replace(need), job=number // 10, by=f"user{number // 10 % 20}", timeout_s=3600.0)
    return replace(queued, expected_s=chance.lognormvariate(5, 1))


def _running(node: Node, device: Device, chance: random.Random) -> RunningAttempt:
    name = f"{node.id}-{device.index}"
    started_at = BEGIN - timedelta(seconds=chance.uniform(0, 300))
    expected_s = chance.lognormvariate(6, 1)
    return RunningAttempt(
        f"{name}-1", name, 1, TaskState.RUNNING, (Place(node.id, (device,)),), NEEDS[0], started_at, 3600.0, "",
        expected_s=expected_s,
    )  # fmt: skip


def _timed(action: object) -> float:
    assert callable(action)
    begin = time.process_time()
    action()
    return time.process_time() - begin


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("1,000 nodes, a mixed load of 0.95", World(nodes=1000, tasks=100_000)),
        ("1,000 nodes, a mixed load of 1.2", World(nodes=1000, tasks=50_000, load=1.2)),
        ("100 nodes flooded with small tasks", World(nodes=100, tasks=20_000, kinds=FLOOD, load=1.1, users=1)),
    ],
    ids=["mixed", "overloaded", "flooded"],
)
def test_a_cluster_against_the_packing_bound(name: str, world: World) -> None:
    begin = time.perf_counter()
    report = Simulation(world).run()
    took_s = time.perf_counter() - begin
    print(f"\n{name}: {report.decisions} decisions in {took_s:.0f} s")
    print("\n".join(report.lines()))
