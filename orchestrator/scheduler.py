"""Who runs where: pure decisions from a snapshot. No clock, no input or output.

The policy is EASY backfilling (Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson,
"Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling", IEEE
TPDS 12(6), 2001), with durations that were learned instead of told (Tsafrir, Etsion and Feitelson, "Backfilling using
system-generated predictions rather than user runtime estimates", IEEE TPDS 18(6), 2007):

- Tasks take their turn by priority, then those of users who used less of late, then as they were submitted.
- Whatever fits is started, on the fullest node that has room: whole nodes stay free for whole-node work.
- For a task that fits the cluster but not now the nodes are kept that can take it soonest, from when the attempts there
  are expected to end. Until then tasks after it may use them if they are expected to end in time, or fit beside it. So
  what needs much is not starved by small tasks, which fill the gaps. A fifth of the nodes are kept at most, for each
  kind of device, and those of one task at least.
- A task that has waited for long trusts timeouts alone, which nothing outlasts, as the first of these papers has it:
  the first in turn for a kind of device begins within its patience and one timeout, however wrong expectations are.
- Within a job whatever fits is started, before anything is kept for its other tasks.
- What is compared with another task of its job comes after that, however that ends, and runs where it was done; where
  that is closed or gone, anywhere. What is compared with earlier runs takes their devices first where they are free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from db.store import OpenTask, Snapshot
from jobs.state import DONE, RETRYABLE, Failure, TaskState
from jobs.task import Node, Place
from jobs.toolchains import DEFAULT
from orchestrator.leading.collecting import garbage_collected_later
from orchestrator.scheduling import words
from orchestrator.scheduling.board import Board, Want
from orchestrator.scheduling.rooms import EXPECTED, LATEST, ends_of
from orchestrator.scheduling.spots import Spot

#: How long durations that were learned are trusted while a task waits, from the submission of its job. Where they are
#: wrong, one task after the other that overstays would keep it waiting for ever: tests/unit/test_simulation.py.
PATIENCE_S = 600.0


@dataclass(frozen=True)
class Queue:
    """All that a task needs is done."""

    task: OpenTask


@dataclass(frozen=True)
class Unqueue:
    """Something that a queued task needs is not done any more: its files were lost."""

    task: OpenTask


@dataclass(frozen=True)
class Block:
    """Something that a task needs will not be done."""

    task: OpenTask
    reason: str


@dataclass(frozen=True)
class Fail:
    """A queued task can't be run at all."""

    task: OpenTask
    failure: Failure
    lock: str = ""  #: the digest of the toolchain that no node can build


@dataclass(frozen=True)
class Build:
    """Queued tasks want a toolchain that these nodes don't have."""

    toolchain: str  #: its name
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """A task has room on a node."""

    task: OpenTask
    places: tuple[Place, ...]  #: as many as its resources ask for nodes


@dataclass(frozen=True)
class Wait:
    """A task can't go on, for another reason than it says; `is_stuck` when nothing that is up could change that."""

    task: OpenTask
    reason: str
    is_stuck: bool


Action = Queue | Unqueue | Block | Fail | Build | Start | Wait


def decide(
    snapshot: Snapshot, nodes: Sequence[Node], twins: Mapping[str, str], now: datetime, patience_s: float = PATIENCE_S
) -> list[Action]:
    """Everything that is to be done now, in order.

    Every open task that is not started waits; a Wait is said only where its words are not those that the task has.
    `nodes` are those that are up, the closed ones among them. `twins` names for queued tasks an earlier one that
    computes the same: they wait for it, to take over its outputs.
    """
    with garbage_collected_later():
        return _Decision(snapshot, twins, Board(snapshot, nodes, now), now - timedelta(seconds=patience_s)).actions()


def in_turn(tasks: Iterable[OpenTask], usage: Mapping[str, float] | None = None) -> list[OpenTask]:
    """Tasks in the order in which they get what they want; `usage` is in device seconds by user."""
    used = usage or {}
    jobs: dict[str, list[OpenTask]] = {}
    for task in tasks:
        jobs.setdefault(task.job, []).append(task)

    def turn(of_job: Sequence[OpenTask]) -> tuple[int, float, datetime, str]:
        task = of_job[0]
        return (-task.priority, used.get(task.submitted_by, 0.0), task.submitted_at, task.job)

    by_id = attrgetter("id")
    return [task for of_job in sorted(jobs.values(), key=turn) for task in sorted(of_job, key=by_id)]


class _Decision:
    """One decision while it is made."""

    def __init__(self, snapshot: Snapshot, twins: Mapping[str, str], board: Board, patient_since: datetime) -> None:
        self._tasks = {task.id: task for task in snapshot.tasks}
        self._in_turn = in_turn(snapshot.tasks, snapshot.usage)
        self._twins, self._board, self._patient_since = twins, board, patient_since
        self._locks, self._unresolved, self._ran = snapshot.locks, snapshot.unresolved, snapshot.ran
        self._stuck: dict[str, str] = {}  #: why, by task
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        if self._locks:
            self._expect_builds()
        job = ""
        blocked: list[tuple[OpenTask, Want]] = []  #: of the job
        for task in self._in_turn:
            if task.job != job:
                self._reserve(blocked)
                job, blocked = task.job, []
            if task.state is TaskState.PENDING:
                self._decide_pending(task)
            elif task.state is TaskState.QUEUED:
                want = self._decide_queued(task)
                if want is not None and self._board.reserves(want.share.need.device_kind):
                    blocked.append((task, want))
        self._actions += [Build(name, nodes) for name, nodes in self._board.to_build().items()]
        return self._actions

    def _expect_builds(self) -> None:
        """Have room kept for the builds that queued tasks want, whoever's turn it is."""
        for task in self._in_turn:
            kept = self._locks.get(task.toolchain)
            if kept is not None and task.state is TaskState.QUEUED and task.id not in self._twins:
                self._board.want_under(task, kept, self._spot_of(task, kept.digest))
        self._board.make_way_for_builds()

    def _reserve(self, blocked: Iterable[tuple[OpenTask, Want]]) -> None:
        for task, want in blocked:
            if self._board.reserves(want.share.need.device_kind):
                self._board.reserve(want, EXPECTED if task.submitted_at > self._patient_since else LATEST)

    def _decide_pending(self, task: OpenTask) -> None:
        needs = [self._tasks[need] for need in task.needs]
        for need in needs:
            if need.state in RETRYABLE:
                without = f" without having made {need.lost} again" if need.lost else ""
                self._actions.append(Block(task, f"{need.stage} ({need.id}) {need.state}{without}"))
                return
            if need.id in self._stuck:
                self._wait(task, f"{need.stage}: {self._stuck[need.id]}", is_stuck=True)
                return
        waiting = ", ".join(sorted({_work_of(need) for need in needs if need.state not in DONE}))
        if waiting:
            self._wait(task, f"after {waiting}", is_stuck=False)
        else:
            self._actions.append(Queue(task))

    def _decide_queued(self, task: OpenTask) -> Want | None:
        """Start a task or let it wait; returns what is to be kept for it."""
        if task.needed and any(self._tasks[need.id].state not in DONE for need in task.needed):
            self._actions.append(Unqueue(task))
            return None
        twin = self._twins.get(task.id)
        if twin is not None:
            self._wait(task, self._stuck.get(twin, f"{twin} computes the same"), is_stuck=twin in self._stuck)
            return None
        if self._waits_to_compare(task):
            return None
        want = self._board.want_of(task, self._spot_of(task)) if task.toolchain == DEFAULT else self._want_under(task)
        if want is None:
            return None
        if want.is_possible and not want.is_full:
            ends = ends_of(0.0, task.expected_s, task.timeout_s)
            places = self._board.place_as_before(task, want, ends) or self._board.place(want, ends)
            if places is not None:
                self._actions.append(Start(task, places))
                return None
        self._wait(task, want.reason, want.is_stuck)
        return want if want.is_possible else None

    def _waits_to_compare(self, task: OpenTask) -> bool:
        """Let a task wait for the one that it is compared with until that has ended, and it is known where."""
        if task.after is None:
            return False
        earlier = self._tasks[task.after]
        if earlier.state in RETRYABLE or earlier.id in self._ran:
            return False
        reason = words.waits_to_compare(earlier.stage, earlier.subject)
        self._wait(task, self._stuck.get(earlier.id, reason), is_stuck=earlier.id in self._stuck)
        return True

    def _spot_of(self, task: OpenTask, lock: str = "") -> Spot | None:
        """Where the task that it is compared with was done, if it can run there; None: anywhere."""
        is_done = task.after is not None and self._tasks[task.after].state in DONE
        places = self._ran.get(task.after or "") if is_done else None
        return self._board.spot_of(task, places, lock) if places else None

    def _want_under(self, task: OpenTask) -> Want | None:
        """What a task wants that runs under a toolchain; None: that is not known yet, or can't be had."""
        kept, unresolved = self._locks.get(task.toolchain), self._unresolved.get(task.toolchain)
        if kept is not None:
            want = self._board.want_under(task, kept, self._spot_of(task, kept.digest))
            if want.failure is None:
                return want
            self._actions.append(Fail(task, want.failure, kept.digest))
        elif unresolved is not None and unresolved.failure is not None:
            self._actions.append(Fail(task, unresolved.failure))
        else:
            trouble = unresolved.why if unresolved else ""
            self._wait(task, words.waits_for_lock(task.toolchain, trouble), is_stuck=False)
        return None

    def _wait(self, task: OpenTask, reason: str, is_stuck: bool) -> None:
        if is_stuck:
            self._stuck[task.id] = reason
        if task.waits_for != reason or task.is_stuck != is_stuck:
            self._actions.append(Wait(task, reason, is_stuck))


def _work_of(need: OpenTask) -> str:
    """What is waited for: a stage, or what it makes a second time."""
    return f"{need.stage} makes {need.lost} again" if need.lost else need.stage
