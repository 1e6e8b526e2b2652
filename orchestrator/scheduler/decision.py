"""Which task runs where: pure decisions from a snapshot, without clock, input or output.

The policy is EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE
TPDS 12(6), 2001), with learned durations in place of user estimates (Tsafrir, Etsion and Feitelson, "Backfilling using
system-generated predictions rather than user runtime estimates", IEEE TPDS 18(6), 2007):

- The queue is ordered by priority, then by users' recent usage, least first, then by submission.
- Whatever fits is started, on the fullest node that fits it: empty nodes stay free for whole-node tasks.
- For a task that fits the cluster but not now, the nodes that become available soonest are reserved from when the
  attempts there are expected to end (the shadow time). Later tasks are backfilled onto them if they are expected to end
  by then, or fit beside the reservation. So small tasks fill the gaps and don't starve large ones. At most a fifth of
  the nodes are reserved for each kind of device, and always those of one task.
- A task that has waited for long trusts timeouts alone, which nothing outlasts, as the first of these papers has it:
  the first in the queue for a kind of device begins within its patience and one timeout, however wrong predictions are.
- Within a job whatever fits is started before anything is reserved for its other tasks.
- A task that is compared with another one of its job starts after that one, however that ends, and runs where it ran;
  anywhere if that node is cordoned or gone. A task that is compared with earlier runs prefers their devices where these
  are free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from db.store import OpenTask, Snapshot
from jobs.state import DONE, OPEN, RETRYABLE, Failure, TaskState, internal_failure
from jobs.task import Node, Place
from jobs.toolchains import DEFAULT
from orchestrator.scheduler import reasons
from orchestrator.scheduler.allocator import Allocator, Request
from orchestrator.scheduler.capacity import EXPECTED, LATEST, end_times
from orchestrator.scheduler.placement import Placement

#: How long learned durations are trusted while a task waits, from the submission of its job. Where they are wrong,
#: tasks that overstay would keep it waiting for ever (tests/unit/scheduler/test_simulation.py).
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Queue:
    """Queue a task: all that it needs is done."""

    task: OpenTask


@dataclass(frozen=True)
class Unqueue:
    """Take a task out of the queue: the files of something that it needs were lost."""

    task: OpenTask


@dataclass(frozen=True)
class Block:
    """Block a task: something that it needs will not be done."""

    task: OpenTask
    reason: str


@dataclass(frozen=True)
class Fail:
    """Fail an open task that can't run at all."""

    task: OpenTask
    failure: Failure
    lock: str = ""  #: the digest of the toolchain that no node can build


@dataclass(frozen=True)
class Build:
    """Have nodes build a toolchain that queued tasks need."""

    toolchain: str  #: its name
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """Start a task on its places."""

    task: OpenTask
    places: tuple[Place, ...]  #: as many as its resources ask for nodes


@dataclass(frozen=True)
class Wait:
    """Record why a task waits; it is unschedulable when no node that is up could ever take it."""

    task: OpenTask
    reason: str
    is_unschedulable: bool


Action = Queue | Unqueue | Block | Fail | Build | Start | Wait


def decide(
    snapshot: Snapshot,
    nodes: Sequence[Node],
    duplicates: Mapping[str, str],
    now: datetime,
    patience_s: float = PATIENCE_S,
) -> list[Action]:
    """Return all actions that are due now, in order.

    An open task without another action waits; there is a `Wait` only if its reason differs from the stored one.
    `nodes` are up; cordoned ones are among them. `duplicates` maps queued tasks to an earlier task that computes the
    same: they wait for it, to reuse its outputs.
    """
    trust_until = now - timedelta(seconds=patience_s)
    return _Decision(snapshot, duplicates, Allocator(snapshot, nodes, now), trust_until).actions()


def in_queue_order(tasks: Iterable[OpenTask], usage: Mapping[str, float] | None = None) -> list[OpenTask]:
    """Order tasks by priority, then by their users' usage (in device seconds), then by submission."""
    used = usage or {}
    jobs: dict[str, list[OpenTask]] = {}
    for task in tasks:
        jobs.setdefault(task.job, []).append(task)

    def rank(tasks_of_job: Sequence[OpenTask]) -> tuple[int, float, datetime, str]:
        task = tasks_of_job[0]
        return (-task.priority, used.get(task.submitted_by, 0.0), task.submitted_at, task.job)

    by_id = attrgetter("id")
    return [task for tasks_of_job in sorted(jobs.values(), key=rank) for task in sorted(tasks_of_job, key=by_id)]


class _Decision:
    """The state of one decision."""

    def __init__(
        self, snapshot: Snapshot, duplicates: Mapping[str, str], allocator: Allocator, trust_until: datetime
    ) -> None:
        """Tasks submitted before `trust_until` have run out of patience with learned durations."""
        self._tasks = {task.id: task for task in snapshot.tasks}
        self._queue = in_queue_order(snapshot.tasks, snapshot.usage)
        self._duplicates, self._allocator, self._trust_until = duplicates, allocator, trust_until
        self._locks, self._unresolved, self._ran = snapshot.locks, snapshot.unresolved, snapshot.ran_on
        self._unschedulable: dict[str, str] = {}  #: reasons, by task
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        if self._locks:
            self._plan_builds()
        job = ""
        blocked: list[tuple[OpenTask, Request]] = []  #: of the job
        for task in self._queue:
            if task.job != job:
                self._reserve(blocked)
                job, blocked = task.job, []
            try:
                blocked += self._decide(task)
            except Exception as error:  # one task's fault stops nothing else
                self._actions.append(Fail(task, internal_failure(error)))
        self._actions += [Build(name, nodes) for name, nodes in self._allocator.builds().items()]
        return self._actions

    def _decide(self, task: OpenTask) -> list[tuple[OpenTask, Request]]:
        """Decide about an open task; return its request if nodes are to be reserved for it."""
        if task.defect is not None and task.state in OPEN:
            self._actions.append(Fail(task, task.defect))
        elif task.state is TaskState.PENDING:
            self._decide_pending(task)
        elif task.state is TaskState.QUEUED:
            request = self._decide_queued(task)
            if request is not None and self._allocator.can_reserve(request.per_node.resources.device_kind):
                return [(task, request)]
        return []

    def _plan_builds(self) -> None:
        """Let no exclusive task start where a toolchain of any queued task is to be built."""
        for task in self._queue:
            stored = self._locks.get(task.toolchain)
            if stored is not None and task.state is TaskState.QUEUED and task.id not in self._duplicates:
                self._allocator.request_with_toolchain(task, stored, self._placement_for(task, stored.digest))
        self._allocator.block_exclusive_on_build_nodes()

    def _reserve(self, blocked: Iterable[tuple[OpenTask, Request]]) -> None:
        for task, request in blocked:
            if self._allocator.can_reserve(request.per_node.resources.device_kind):
                self._allocator.reserve(request, EXPECTED if task.submitted_at > self._trust_until else LATEST)

    def _decide_pending(self, task: OpenTask) -> None:
        needs = [self._tasks[need] for need in task.needs]
        for need in needs:
            if need.state in RETRYABLE:
                without = f" without having made {need.lost_artifacts} again" if need.lost_artifacts else ""
                self._actions.append(Block(task, f"{need.stage} ({need.id}) {need.state}{without}"))
                return
            if need.id in self._unschedulable:
                self._wait(task, f"{need.stage}: {self._unschedulable[need.id]}", is_unschedulable=True)
                return
        waiting = ", ".join(sorted({_format_need(need) for need in needs if need.state not in DONE}))
        if waiting:
            self._wait(task, f"after {waiting}", is_unschedulable=False)
        else:
            self._actions.append(Queue(task))

    def _decide_queued(self, task: OpenTask) -> Request | None:
        """Start a task or let it wait; return the request to reserve nodes for."""
        if task.needed and any(self._tasks[need.id].state not in DONE for need in task.needed):
            self._actions.append(Unqueue(task))
            return None
        duplicate = self._duplicates.get(task.id)
        if duplicate is not None:
            self._wait_for(task, duplicate, f"{duplicate} computes the same")
            return None
        earlier = self._tasks[task.after] if task.after is not None else None
        if earlier is not None and earlier.state not in RETRYABLE and earlier.id not in self._ran:
            self._wait_for(task, earlier.id, reasons.waits_to_compare(earlier.stage, earlier.subject))
            return None
        request = self._request_for(task)
        if request is None:
            return None
        if request.is_possible and not request.is_exhausted:
            ends = end_times(0.0, task.expected_s, task.timeout_s)
            places = self._allocator.allocate_with_affinity(task, request, ends)
            places = places or self._allocator.allocate(request, ends)
            if places is not None:
                self._actions.append(Start(task, places))
                return None
        self._wait(task, request.reason, request.is_unschedulable)
        return request if request.is_possible else None

    def _placement_for(self, task: OpenTask, lock: str = "") -> Placement | None:
        """Return where the task that this one is compared with ran, if this one can run there; None: anywhere."""
        is_done = task.after is not None and self._tasks[task.after].state in DONE
        places = self._ran.get(task.after or "") if is_done else None
        return self._allocator.placement_for(task, places, lock) if places else None

    def _request_for(self, task: OpenTask) -> Request | None:
        """Return the request of a task; None when its toolchain is unresolved or can't be built."""
        if task.toolchain == DEFAULT:
            return self._allocator.request_for(task, self._placement_for(task))
        stored, unresolved = self._locks.get(task.toolchain), self._unresolved.get(task.toolchain)
        if stored is not None:
            request = self._allocator.request_with_toolchain(task, stored, self._placement_for(task, stored.digest))
            if request.failure is None:
                return request
            self._actions.append(Fail(task, request.failure, stored.digest))
        elif unresolved is not None and unresolved.failure is not None:
            self._actions.append(Fail(task, unresolved.failure))
        else:
            error = unresolved.why if unresolved else ""
            self._wait(task, reasons.waits_for_lock(task.toolchain, error), is_unschedulable=False)
        return None

    def _wait_for(self, task: OpenTask, other: str, reason: str) -> None:
        """Let a task wait for another one; it is unschedulable if that one is, for the same reason."""
        self._wait(task, self._unschedulable.get(other, reason), is_unschedulable=other in self._unschedulable)

    def _wait(self, task: OpenTask, reason: str, is_unschedulable: bool) -> None:
        if is_unschedulable:
            self._unschedulable[task.id] = reason
        if task.waits_for != reason or task.is_unschedulable != is_unschedulable:
            self._actions.append(Wait(task, reason, is_unschedulable))


def _format_need(need: OpenTask) -> str:
    """Format what is waited for: a stage, or the files that it makes again."""
    return f"{need.stage} makes {need.lost_artifacts} again" if need.lost_artifacts else need.stage
