"""Who runs where: pure decisions from a snapshot. No clock, no input or output.

Tasks are taken job by job, in the order in which they were submitted. Within a job whatever fits is started. A task
that fits a node but not now keeps tasks of later jobs off that node, so that small tasks can't starve large ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from db.store import OpenTask, Snapshot
from jobs.state import DONE, RETRYABLE, TaskState
from jobs.task import GIB, Device, Node, Place, Resources


@dataclass(frozen=True)
class Queue:
    """All that a task needs is done."""

    task: OpenTask


@dataclass(frozen=True)
class Block:
    """Something that a task needs will not be done."""

    task: OpenTask
    reason: str


@dataclass(frozen=True)
class Start:
    """A task has room on a node."""

    task: OpenTask
    places: tuple[Place, ...]  #: as many as its resources ask for nodes


@dataclass(frozen=True)
class Wait:
    """A task can't go on; `is_stuck` when nothing that runs now could change that."""

    task: OpenTask
    reason: str
    is_stuck: bool


Action = Queue | Block | Start | Wait


@dataclass(frozen=True)
class Room:
    """What is left of a node."""

    node: Node
    cpus: int
    memory_bytes: int
    free: tuple[Device, ...]
    running: int = 0  #: attempts
    is_quiet: bool = False  #: an attempt has it to itself

    def devices_for(self, need: Resources) -> tuple[Device, ...] | None:
        """The devices that a task would get here now; None when it does not fit."""
        devices = tuple(device for device in self.free if device.kind == need.device_kind)[: need.devices]
        fits = (
            len(devices) == need.devices
            and need.cpus <= self.cpus
            and need.memory_bytes <= self.memory_bytes
            and not self.is_quiet
            and not (need.is_quiet and self.running)
        )
        return devices if fits else None

    def without(self, need: Resources, devices: Iterable[Device]) -> "Room":
        """What is left when a task has taken its share."""
        taken = set(devices)
        return replace(
            self,
            cpus=self.cpus - need.cpus,
            memory_bytes=self.memory_bytes - need.memory_bytes,
            free=tuple(device for device in self.free if device not in taken),
            running=self.running + 1,
            is_quiet=self.is_quiet or need.is_quiet,
        )


@dataclass
class _Round:
    """What one decision has given away so far."""

    rooms: dict[str, Room]
    reserved: dict[str, str] = field(default_factory=dict)  #: node -> the job that it is kept for


def decide(snapshot: Snapshot, nodes: Sequence[Node], twins: Mapping[str, str] = MappingProxyType({})) -> list[Action]:
    """Everything that is to be done now, in order. Waits are said for every open task that is not started.

    `twins` names for queued tasks an earlier one that computes the same: they wait for it, to take over its outputs.
    """
    states = {task.id: task for task in snapshot.tasks}
    actions: list[Action] = []
    round_ = _Round(rooms_of(snapshot, nodes))
    stuck: dict[str, str] = {}
    for task in in_turn(snapshot.tasks):
        twin = twins.get(task.id)
        action = _wait_for(task, twin, stuck) if twin else _decide_one(task, states, stuck, round_)
        if isinstance(action, Wait) and action.is_stuck:
            stuck[task.id] = action.reason
        if action:
            actions.append(action)
    return actions


def in_turn(tasks: Iterable[OpenTask]) -> list[OpenTask]:
    """Tasks in the order in which they get what they want."""
    return sorted(tasks, key=lambda task: (task.submitted_at, task.job, task.id))


def _wait_for(task: OpenTask, twin: str, stuck: Mapping[str, str]) -> Wait:
    return Wait(task, stuck.get(twin, f"{twin} computes the same"), is_stuck=twin in stuck)


def _decide_one(
    task: OpenTask, tasks: Mapping[str, OpenTask], stuck: Mapping[str, str], round_: _Round
) -> Action | None:
    if task.state is TaskState.PENDING:
        return _decide_pending(task, tasks, stuck)
    if task.state is TaskState.QUEUED:
        return _place(task, round_)
    return None


def _decide_pending(task: OpenTask, tasks: Mapping[str, OpenTask], stuck: Mapping[str, str]) -> Action | None:
    needs = [tasks[need] for need in task.needs]
    for need in needs:
        if need.state in RETRYABLE:
            return Block(task, f"{need.stage} ({need.id}) {need.state}")
        if need.id in stuck:
            return Wait(task, f"{need.stage}: {stuck[need.id]}", is_stuck=True)
    if all(need.state in DONE for need in needs):
        return Queue(task)
    waiting = ", ".join(sorted({need.stage for need in needs if need.state not in DONE}))
    return Wait(task, f"after {waiting}", is_stuck=False)


def _place(task: OpenTask, round_: _Round) -> Action:
    able = [room for room in round_.rooms.values() if lacks(task.resources, [room.node]) is None]
    if not able:
        reason = lacks(task.resources, [room.node for room in round_.rooms.values()])
        return Wait(task, reason or "needs a node that has it all at once", is_stuck=True)
    for room in sorted(able, key=_least_left):
        name = room.node.id
        if round_.reserved.get(name, task.job) != task.job:
            continue
        devices = room.devices_for(task.resources)
        if devices is not None:
            round_.rooms[name] = room.without(task.resources, devices)
            return Start(task, (Place(name, devices),))
    round_.reserved.setdefault(min(able, key=_least_left).node.id, task.job)
    return Wait(task, _waits_for(task.resources), is_stuck=False)


def _least_left(room: Room) -> tuple[int, int]:
    """Nearly full nodes first, so that whole ones stay free for whole-node work."""
    return (len(room.free), room.cpus)


def rooms_of(snapshot: Snapshot, nodes: Sequence[Node]) -> dict[str, Room]:
    """What the running attempts leave of each node."""
    rooms = {node.id: Room(node, node.cpus, node.memory_bytes, node.devices) for node in nodes}
    for running in snapshot.running:
        for place in running.places:
            if place.node in rooms:
                rooms[place.node] = rooms[place.node].without(running.resources, place.devices)
    return rooms


def lacks(need: Resources, nodes: Sequence[Node]) -> str | None:
    """What no node of the cluster has, in words; None when one could take the task if it were empty."""
    if not nodes:
        return "needs a node; the cluster has none"
    wants: list[tuple[str, int, int]] = []
    if need.devices:
        wants.append((need.device_kind, need.devices, max(node.count(need.device_kind) for node in nodes)))
    wants.append(("core", need.cpus, max(node.cpus for node in nodes)))
    for noun, wanted, most in wants:
        if wanted > most:
            return f"needs {wanted} x {noun}; the cluster has " + (f"{most} on a node at most" if most else "none")
    most_memory = max(node.memory_bytes for node in nodes)
    if need.memory_bytes > most_memory:
        return f"needs {need.memory_bytes / GIB:.0f} GiB of memory; the largest node has {most_memory / GIB:.0f}"
    return None


def devices_in_words(need: Resources) -> str:
    """`8 x mi300x`; logical devices of the host's own cores are called so."""
    return f"{need.devices} x {need.device_kind}{' device' if need.device_kind == 'cpu' else ''}"


def _waits_for(need: Resources) -> str:
    what = devices_in_words(need) if need.devices else f"{need.cpus} x core"
    return f"needs {what} free on a node" + (" that runs nothing else" if need.is_quiet else "")
