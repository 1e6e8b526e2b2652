"""Nodes, tasks and running attempts for decisions, and a short way to ask for one."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from db.store import NeededTask, OpenTask, RunningAttempt, Snapshot, StoredLock, UnresolvedToolchain
from jobs.state import TaskState
from jobs.task import GIB, Device, Node, Pin, Place, Resources
from jobs.toolchains import DEFAULT
from orchestrator.scheduler.decision import Action, Start, Wait, decide

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GPU = "mi300x"


def node(
    name: str = "a", cpus: int = 4, memory_gib: int = 16, toolchains: Mapping[str, str] | None = None, **devices: int
) -> Node:
    node_devices = tuple(Device(kind, index) for kind, count in devices.items() for index in range(count))
    return Node(name, name, cpus, memory_gib * GIB, node_devices, toolchains=toolchains or {})


def task(
    name: str,
    need: Resources = Resources(),  # noqa: B008 - frozen
    *,
    state: TaskState = TaskState.QUEUED,
    needs: tuple[str, ...] = (),
    job: int = 0,
    by: str = "someone",
    priority: int = 0,
    pin: Pin | None = None,
    avoids: tuple[str, ...] = (),
    expected_s: float | None = None,
    timeout_s: float = 60.0,
    lost: str | None = None,
    toolchain: str = DEFAULT,
    after: str | None = None,
    affinity: tuple[tuple[Place, ...], ...] = (),
) -> OpenTask:
    return OpenTask(
        id=f"{job}-{name}",
        job=str(job),
        stage="compile",
        subject=name,
        state=state,
        epoch=0,
        needed=tuple(NeededTask(f"{job}-{other}", "export") for other in needs),
        settings={},
        resources=need,
        waits_for=None,
        is_unschedulable=False,
        submitted_at=BEGIN + timedelta(seconds=job),
        submitted_by=by,
        timeout_s=timeout_s,
        reuse=True,
        priority=priority,
        pin=pin,
        avoids=avoids,
        expected_s=expected_s,
        lost_artifacts=lost,
        toolchain=toolchain,
        after=after and f"{job}-{after}",
        affinity=affinity,
    )


def running(of: OpenTask, *places: Place, since_s: float = 0.0) -> RunningAttempt:
    """Return an attempt of a task that has run for this long at the beginning."""
    started_at = BEGIN - timedelta(seconds=since_s)
    return RunningAttempt(
        f"{of.id}-1", of.id, 1, TaskState.RUNNING, places, of.resources, started_at, of.timeout_s, "", "", of.expected_s
    )


def on(name: str, *indices: int) -> Place:
    """A place with GPUs."""
    return Place(name, tuple(Device(GPU, index) for index in indices))


def gpus(count: int, nodes: int = 1) -> Resources:
    return Resources(devices=count, device_kind=GPU, nodes=nodes)


def decided(
    tasks: Sequence[OpenTask],
    nodes: Sequence[Node],
    *attempts: RunningAttempt,
    closed: Mapping[str, str] | None = None,
    quarantined: Mapping[tuple[str, str, int], str] | None = None,
    usage: Mapping[str, float] | None = None,
    locks: Mapping[str, StoredLock] | None = None,
    unresolved: Mapping[str, UnresolvedToolchain] | None = None,
    ran: Mapping[str, tuple[Place, ...]] | None = None,
    at_s: float = 0.0,
) -> list[Action]:
    """Return the decision at this many seconds after the beginning."""
    snapshot = Snapshot(
        tuple(tasks),
        attempts,
        cordoned=closed or {},
        quarantined=quarantined or {},
        usage=usage or {},
        locks=locks or {},
        unresolved=unresolved or {},
        ran_on=ran or {},
    )
    return decide(snapshot, nodes, {}, BEGIN + timedelta(seconds=at_s))


def started(actions: Sequence[Action]) -> dict[str, tuple[Place, ...]]:
    """Places by the name of the task that is started there."""
    return {action.task.subject: action.places for action in actions if isinstance(action, Start)}


def waits(actions: Sequence[Action]) -> dict[str, str]:
    """Reasons by the name of the task that waits."""
    return {action.task.subject: action.reason for action in actions if isinstance(action, Wait)}
