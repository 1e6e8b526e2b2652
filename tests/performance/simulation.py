"""A cluster with simulated time: the real `decide` over many nodes; attempts end, fail and are lost.

Every start is checked against the free resources, so a device that is allocated twice ends the simulation.
"""

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, takewhile
from math import exp, log

from db.store import OpenTask, RunningAttempt, Snapshot
from jobs.state import TaskState
from jobs.task import GIB, Device, Node, Resources
from orchestrator.scheduler.decision import Action, Start, Wait, decide

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GPU = "mi300x"
TIMEOUT_S = 3600.0
USAGE_HALVES_S = 3600.0
NODE_IS_AWAY_S = 600.0


@dataclass(frozen=True)
class Kind:
    """Tasks of one size; durations are log-normal around the median, cut off by the timeout."""

    name: str
    share: float  #: of all tasks
    need: Resources
    median_s: float
    spread: float  #: sigma of the logarithm: 1.0 makes the mean 1.6 times the median


KINDS = (
    Kind("TP1", 0.55, Resources(4, 24 * GIB, 1, GPU), 180, 1.0),
    Kind("TP4", 0.10, Resources(8, 96 * GIB, 4, GPU), 240, 1.0),
    Kind("TP8", 0.20, Resources(16, 200 * GIB, 8, GPU), 240, 0.8),
    Kind("2 nodes x 8", 0.05, Resources(16, 200 * GIB, 8, GPU, nodes=2), 300, 0.8),
    Kind("quiet TP1", 0.02, Resources(4, 24 * GIB, 1, GPU, is_exclusive=True), 60, 0.5),
    Kind("compile", 0.08, Resources(16, 300 * GIB), 300, 1.2),
)

#: Many small tasks, and a few that need whole nodes, which small ones would never leave to them.
FLOOD = (
    Kind("TP1", 0.97, Resources(4, 24 * GIB, 1, GPU), 300, 0.7),
    Kind("TP8", 0.015, Resources(16, 200 * GIB, 8, GPU), 300, 0.7),
    Kind("2 nodes x 8", 0.01, Resources(16, 200 * GIB, 8, GPU, nodes=2), 300, 0.7),
    Kind("quiet TP1", 0.005, Resources(4, 24 * GIB, 1, GPU, is_exclusive=True), 60, 0.5),
)


@dataclass(frozen=True)
class World:
    """The cluster and the load that are simulated."""

    nodes: int
    tasks: int
    kinds: tuple[Kind, ...] = KINDS
    load: float = 0.95  #: device seconds that arrive, of those that there are
    users: int = 20
    step_s: float = 10.0  #: between two decisions
    fails: float = 0.01  #: of the attempts, by themselves; their tasks are over
    node_fails_each_s: float = 500_000.0  #: one node, on average
    seed: int = 1


@dataclass
class Report:
    """The results of a simulation."""

    simulated_s: float = 0.0
    decisions: int = 0
    ended: int = 0
    lost_attempts: int = 0
    busy_s: float = 0.0  #: device seconds
    could_be_busy_s: float = 0.0  #: device seconds: of the devices that were up, as many as tasks were there to fill
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  #: by kind
    first_s: dict[str, float] = field(default_factory=dict)  #: by kind: the longest that a task was first in turn

    @property
    def utilisation(self) -> float:
        """Return the share of the packing bound that was used."""
        return self.busy_s / self.could_be_busy_s

    def lines(self) -> Iterator[str]:
        """The report in words."""
        yield f"{self.ended} tasks in {self.simulated_s / 3600:.1f} h, {self.lost_attempts} attempts lost with a node"
        yield f"utilisation: {self.utilisation:.3f} of the packing bound"
        for kind, waits_s in self.waits_s.items():
            ordered = sorted(waits_s)
            middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
            yield (
                f"  {kind:<12} waited {middle:5.0f} s (p50) {late:6.0f} s (p99) {ordered[-1]:6.0f} s (longest); "
                f"first in turn for {self.first_s.get(kind, 0):5.0f} s at most"
            )


Decide = Callable[[Snapshot, Sequence[Node], dict[str, str], datetime], list[Action]]


class Simulation:
    """One run of a world."""

    def __init__(self, world: World, decide: Decide = decide) -> None:
        self._world, self._decide = world, decide
        self._random = random.Random(world.seed)
        self._nodes = {name: _node(name) for name in (f"n{number:04}" for number in range(world.nodes))}
        self._kinds: dict[str, str] = {}  #: by task
        self._durations_s: dict[str, float] = {}
        self._arrivals = self._arriving()
        self._queued: dict[str, OpenTask] = {}
        self._queued_at_s: dict[str, float] = {}
        self._running: dict[str, tuple[OpenTask, RunningAttempt]] = {}  #: by attempt
        self._ends: list[tuple[float, str]] = []
        self._away: dict[str, float] = {}  #: until when, by node
        self._free = {name: _Free(node) for name, node in self._nodes.items()}
        self._usage: defaultdict[str, float] = defaultdict(float)  #: by user
        self._first_s: dict[str, float] = {}  #: by task
        self.report = Report()

    def run(self) -> Report:
        """Until every task has ended."""
        for step in count():
            now_s = step * self._world.step_s
            changed = [self._end(now_s), self._break_nodes(now_s), self._arrive(now_s)]
            if any(changed):
                self._act(now_s)
            if not (self._arrivals or self._queued or self._running):
                self.report.simulated_s = now_s
                return self.report
            self._measure()
        raise AssertionError("count() does not end")

    def _arriving(self) -> list[tuple[float, OpenTask]]:
        """All tasks with the times at which they come, the last one first."""
        world, chance = self._world, self._random
        kinds = chance.choices(world.kinds, [kind.share for kind in world.kinds], k=world.tasks)
        durations_s = [min(kind.median_s * exp(chance.gauss(0, kind.spread)), TIMEOUT_S * 0.98) for kind in kinds]
        work_s = sum(
            kind.need.devices * kind.need.nodes * duration_s
            for kind, duration_s in zip(kinds, durations_s, strict=True)
        )
        last_s = work_s / (world.nodes * 8) / world.load
        arrivals = []
        for number, (kind, duration_s) in enumerate(zip(kinds, durations_s, strict=True)):
            at_s = last_s * number / world.tasks
            task = self._task(number, kind, at_s)
            self._kinds[task.id], self._durations_s[task.id] = kind.name, duration_s
            arrivals.append((at_s, task))
        return arrivals[::-1]

    def _task(self, number: int, kind: Kind, at_s: float) -> OpenTask:
        """One of five in its job, expected to take what its like took, more or less; of one in ten nothing is known."""
        chance, job = self._random, f"{number // 5:06}"
        expected_s = None if chance.random() < 0.1 else kind.median_s * exp(chance.gauss(0, log(2)))
        return OpenTask(
            id=f"{job}-{number % 5 + 1:02}", job=job, stage="benchmark", subject=kind.name, state=TaskState.QUEUED,
            epoch=0, needed=(), settings={}, resources=kind.need, waits_for=None, is_unschedulable=False,
            submitted_at=BEGIN + timedelta(seconds=at_s), submitted_by=f"user{number // 5 % self._world.users}",
            timeout_s=TIMEOUT_S, reuse=True, expected_s=expected_s,
        )  # fmt: skip

    def _arrive(self, now_s: float) -> bool:
        came = list(takewhile(lambda arrival: arrival[0] <= now_s, reversed(self._arrivals)))
        for at_s, task in came:
            self._queued[task.id], self._queued_at_s[task.id] = task, at_s
            self._arrivals.pop()
        return bool(came)

    def _end(self, now_s: float) -> bool:
        due = False
        while self._ends and self._ends[0][0] <= now_s:
            _, attempt = heapq.heappop(self._ends)
            if attempt in self._running:  # else it was lost with its node
                self._leave(attempt)
                self.report.ended += 1
                due = True
        return due

    def _leave(self, attempt: str) -> OpenTask:
        task, running = self._running.pop(attempt)
        for place in running.places:
            self._free[place.node].give_back(running.resources, place.devices)
        return task

    def _break_nodes(self, now_s: float) -> bool:
        back = [name for name, until_s in self._away.items() if until_s <= now_s]
        for name in back:
            del self._away[name]
        risk = self._world.step_s / self._world.node_fails_each_s
        broken = [name for name in self._nodes if name not in self._away and self._random.random() < risk]
        for name in broken:
            self._away[name] = now_s + NODE_IS_AWAY_S
            for attempt in [
                key for key, (_, running) in self._running.items() if name in {p.node for p in running.places}
            ]:
                task = self._leave(attempt)
                self._queued[task.id] = replace(task, epoch=task.epoch + 1, avoids=(*task.avoids, name))
                self._queued_at_s[task.id] = now_s
                self.report.lost_attempts += 1
        return bool(back or broken)

    def _act(self, now_s: float) -> None:
        tasks = sorted(self._queued.values(), key=lambda task: (task.submitted_at, task.id))
        snapshot = Snapshot(
            tuple(tasks), tuple(running for _, running in self._running.values()), usage=dict(self._usage)
        )
        up = [node for name, node in self._nodes.items() if name not in self._away]
        self.report.decisions += 1
        for action in self._decide(snapshot, up, {}, BEGIN + timedelta(seconds=now_s)):
            if isinstance(action, Start):
                self._start(action, now_s)
            elif isinstance(action, Wait):
                task = action.task
                self._queued[task.id] = replace(task, waits_for=action.reason, is_unschedulable=action.is_unschedulable)

    def _start(self, start: Start, now_s: float) -> None:
        task, need = start.task, start.task.resources
        assert len({place.node for place in start.places}) == len(start.places) == need.nodes
        for place in start.places:
            assert place.node not in self._away
            assert len(place.devices) == need.devices
            self._free[place.node].take(need, place.devices)
        attempt = RunningAttempt(
            f"{task.id}-{task.epoch + 1}", task.id, task.epoch + 1, TaskState.RUNNING, start.places, need,
            BEGIN + timedelta(seconds=now_s), TIMEOUT_S, "", task.submitted_by, task.expected_s,
        )  # fmt: skip
        fails = self._random.random() < self._world.fails
        lasts_s = self._durations_s[task.id] * (self._random.random() if fails else 1.0)
        del self._queued[task.id]
        self._running[attempt.id] = (task, attempt)
        heapq.heappush(self._ends, (now_s + lasts_s, attempt.id))
        kind = self._kinds[task.id]
        self.report.waits_s[kind].append(now_s - self._queued_at_s.pop(task.id))
        self.report.first_s[kind] = max(self.report.first_s.get(kind, 0.0), self._first_s.pop(task.id, 0.0))

    def _measure(self) -> None:
        step_s, report = self._world.step_s, self.report
        busy = Counter[str]()
        for task, _ in self._running.values():
            busy[task.submitted_by] += task.resources.devices * task.resources.nodes
        wanted = sum(task.resources.devices * task.resources.nodes for task in self._queued.values())
        up = 8 * (len(self._nodes) - len(self._away))
        report.busy_s += busy.total() * step_s
        report.could_be_busy_s += min(up, busy.total() + wanted) * step_s
        fading = 0.5 ** (step_s / USAGE_HALVES_S)
        for user in {*self._usage, *busy}:
            self._usage[user] = self._usage[user] * fading + busy[user] * step_s
        if self._queued:
            first = min(self._queued.values(), key=self._turn)
            self._first_s[first.id] = self._first_s.get(first.id, 0.0) + step_s

    def _turn(self, task: OpenTask) -> tuple[float, datetime, str]:
        return (self._usage[task.submitted_by], task.submitted_at, task.id)


class _Free:
    """The free resources of a node, accounted for separately from the scheduler."""

    def __init__(self, node: Node) -> None:
        self.cpus, self.memory_bytes, self.devices = node.cpus, node.memory_bytes, set(node.devices)
        self.running, self.quiet = 0, 0

    def take(self, need: Resources, devices: Iterable[Device]) -> None:
        assert self.devices.issuperset(devices)
        self._add(need, 1)
        self.devices.difference_update(devices)
        assert self.cpus >= 0
        assert self.memory_bytes >= 0
        assert not self.quiet or self.running == 1

    def give_back(self, need: Resources, devices: Iterable[Device]) -> None:
        self._add(need, -1)
        self.devices.update(devices)

    def _add(self, need: Resources, sign: int) -> None:
        self.cpus -= sign * need.cpus
        self.memory_bytes -= sign * need.memory_bytes
        self.running += sign
        self.quiet += sign * need.is_exclusive


def _node(name: str) -> Node:
    return Node(name, name, 128, 2048 * GIB, tuple(Device(GPU, index, f"{name}-{index}") for index in range(8)))
