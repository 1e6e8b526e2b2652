"""The head: reads a snapshot, lets the scheduler decide, carries the decisions out, writes what came back.

Whoever leads may be a daemon or a `submit --wait`: there is one leader at a time, and the database is the only truth.
"""

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from db import reports
from db.ids import task_of
from db.store import Begun, LeaderKind, OpenTask, Snapshot, Store, utc_now
from jobs.errors import Unreachable
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Attempt, TaskResult
from orchestrator import scheduler
from orchestrator.deciding.gating import judged
from orchestrator.executor import Executor
from orchestrator.leading.attempts import attempt_of
from orchestrator.leading.holdoffs import HoldOffs
from orchestrator.leading.reuse import Reuse
from orchestrator.leading.running import Running
from orchestrator.leading.schedules import Schedules
from orchestrator.leading.upkeep import LOGS_EVERY_S, Upkeep
from orchestrator.scheduler import Action, Block, Fail, Queue, Start, Unqueue, Wait
from orchestrator.toolchains.building import Building
from orchestrator.toolchains.locks import Locks, Resolver

TICK_S = 1.0
DECIDE_AGAIN_S = 10.0
LEADER_ENDED = Failure(FailureKind.HANDED_BACK, "the process that led was ended")


@dataclass
class Head:
    """The loop's one step; it owns the executor."""

    store: Store
    executor: Executor
    reuse: Reuse
    resolver: Resolver
    kind: LeaderKind = LeaderKind.EMBEDDED
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
    schedules: Schedules | None = None  #: that it submits when they are due
    _term: int | None = None
    _is_leading: bool = False
    _results: list[TaskResult] = field(default_factory=list)  #: collected, and not stored yet
    _token: object = None
    _world: object = None  #: nodes, and which of them are closed, when it was last decided
    _tick_at: float = 0.0
    _decide_again_at: float = 0.0

    def __post_init__(self) -> None:
        """What it keeps count of."""
        self._running = Running(self.store, self.executor)
        self._upkeep = Upkeep(self.store, self.executor, self.clock)
        self._hold_offs = HoldOffs(self.clock)
        self._locks = Locks(self.store, self.resolver, self.clock)
        self._building = Building(self.executor)

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever a step may have something to do."""
        self.executor.wakes(wake)
        self._locks.wake = wake

    @property
    def pause_s(self) -> float:
        """How long nothing has to be done while nobody rings."""
        return LOGS_EVERY_S if self._upkeep.has_followers else TICK_S

    def step(self, *, starts: bool = True) -> bool:
        """Collect, decide, act; never waits. Tells whether anything happened.

        Nothing is read or decided while nothing was written, but for a look around every `TICK_S`: a head that works
        while others are timed would disturb them. Without `starts` what ends is stored, and nothing is started.
        Raises DatabaseUnreachable, ClusterUnreachable or StorageUnusable; the next step goes on where this one stopped.
        """
        self._lead()
        has_results = self._collect()
        token = self.store.database.change_token()
        is_new, is_tick = token != self._token, self.clock() >= self._tick_at
        if is_tick:
            self.store.expire_jobs()
            if self.schedules is not None:
                self.schedules.submit_due(self.now())
            self._tick_at = self.clock() + TICK_S
        has_moved = False
        if has_results or is_new or self._locks.has_news() or (is_tick and self._has_world_changed()):
            has_moved = self._tend_and_decide(starts=starts)
            self._token = token if starts else None
        if is_new or is_tick:
            self._upkeep.look()
        self._upkeep.copy_logs(self._running.handed)
        return has_results or has_moved

    def _tend_and_decide(self, *, starts: bool) -> bool:
        snapshot = self.store.snapshot()
        has_moved = self._running.tend(snapshot)
        if starts:
            has_moved |= self._decide(self.store.snapshot() if has_moved else snapshot)
            self._decide_again_at = self.clock() + DECIDE_AGAIN_S
        return has_moved

    def _has_world_changed(self) -> bool:
        now = self.clock()
        return now >= min(self._decide_again_at, self._hold_offs.next_at()) or self._look_around() != self._world

    def _look_around(self) -> object:
        return (tuple(self.executor.nodes()), dict(self.executor.closed()))

    def is_newest(self) -> bool:
        """Whether nobody has led since this head began to."""
        leader = reports.leader(self.store.database)
        return self._term is None or (leader is not None and leader.id == self._term)

    def hand_back(self) -> None:
        """End the processes of all that this head runs and give it back to the queue: somebody else may lead next.

        Somebody may do so already: what others started is theirs.
        """
        self._locks.close()
        try:
            if self._is_leading:
                self._collect()
        finally:
            self.executor.close()
        mine = [one for one in self.store.snapshot().running if one.id in self._running.begun]
        self._running.give_up(mine, LEADER_ENDED)
        self._end_term()

    def leave(self) -> None:
        """Let go of what runs, for the next head to take over."""
        self._locks.close()
        self.executor.leave()  # agents keep the results that were not collected for the next one
        self._store_results()
        self._end_term()

    def _lead(self) -> None:
        """Begin to lead; what an earlier leader left running goes on."""
        if self._is_leading:
            return
        if self._term is None:
            self._term = self.store.begin_term(self.kind, socket.gethostname(), os.getpid())
        running = self.store.snapshot().running
        self.executor.lead(self._term, running)
        self._running.take_over(running)
        self.reuse.forget()
        self._is_leading = True

    def _end_term(self) -> None:
        if self._term is not None:
            self.store.end_term(self._term)

    def _collect(self) -> bool:
        """Store what came in. No more is collected before that: collecting tells agents that they may forget."""
        self._results = self._results or [self._running.as_handed_back(result) for result in self.executor.collect(0.0)]
        return self._store_results()

    def _store_results(self) -> bool:
        """Store what was collected; what is not stored yet when something is raised is tried again."""
        results, was = self._results, bool(self._results)
        if was:
            self.store.finish(judged(self.store.database, results))
            self._running.forget([result.attempt for result in results])
            self._results = []
            if any(result.lost for result in results):
                self.reuse.forget()
        return was

    def _decide(self, snapshot: Snapshot) -> bool:
        """Let the scheduler decide, and carry it out; what somebody else changed meanwhile is left to the next step."""
        self._building.ask_anew(snapshot)
        nodes, closed = self.executor.nodes(), self.executor.closed()
        self._world = (tuple(nodes), dict(closed))
        self._upkeep.see(nodes, closed)
        seen = replace(snapshot, closed={**self._running.closed_by_strays(snapshot), **closed, **snapshot.closed})
        seen, fresh = self._look_up_toolchains(seen)
        while True:
            actions = self._hold_offs.apply(scheduler.decide(seen, nodes, self.reuse.twins(seen), self.now()))
            moved = self._move_on(actions)
            if not moved:
                break
            fresh |= moved
            seen = replace(seen, tasks=tuple(_moved(task, moved) for task in seen.tasks))
        self._hold_offs.keep(task.id for task in seen.tasks if task.state is TaskState.QUEUED)
        self._building.ask(actions, seen)
        started = self._start([action for action in actions if isinstance(action, Start)], fresh)
        waits = [action for action in actions if isinstance(action, Wait) and _is_new(action)]
        if waits:
            self.store.set_waits({wait.task.id: (wait.reason, wait.is_stuck) for wait in waits})
        return bool(fresh or started or waits)

    def _look_up_toolchains(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, TaskState]]:
        """The snapshot with what toolchains stand for; tasks that could not be looked up before that are taken over."""
        seen = self._locks.tend(snapshot, self.executor.built())
        self.reuse.use(seen.locks)
        new = self.reuse.new_of(seen.tasks) if seen.locks else []
        self.reuse.learn(new)
        taken: dict[str, TaskState] = dict.fromkeys(self._take_over(new), TaskState.CACHED)
        return replace(seen, tasks=tuple(_moved(task, taken) for task in seen.tasks)) if taken else seen, taken

    def _move_on(self, actions: Sequence[Action]) -> dict[str, TaskState]:
        """Queue what is ready, take over what was done before, block what can't be; the new states of those tasks."""
        moved: dict[str, TaskState] = {}
        unready = [action.task.id for action in actions if isinstance(action, Unqueue)]
        if unready:
            moved |= dict.fromkeys(self.store.unqueue(unready), TaskState.PENDING)
        fails = [action for action in actions if isinstance(action, Fail)]
        if fails:
            moved |= dict.fromkeys(self.store.fail({one.task.id: one.failure for one in fails}), TaskState.FAILED)
            self._building.give_up(fails)
        blocks = {action.task.id: action.reason for action in actions if isinstance(action, Block)}
        if blocks:
            moved |= dict.fromkeys(self.store.block(blocks), TaskState.BLOCKED)
        ready = [action.task for action in actions if isinstance(action, Queue)]
        if ready:
            queued = self.store.queue([task.id for task in ready])
            moved |= dict.fromkeys(queued, TaskState.QUEUED)
            self.reuse.learn(ready)
            moved |= dict.fromkeys(self._take_over([task for task in ready if task.id in queued]), TaskState.CACHED)
        return moved

    def _take_over(self, tasks: Sequence[OpenTask]) -> set[str]:
        """Take earlier tasks' outputs instead of running; the ids of the tasks that this did for."""
        found = self.reuse.found(tasks)
        return self.store.take_over(found) if found else set()

    def _start(self, starts: Sequence[Start], fresh: Collection[str]) -> bool:
        """Begin attempts, all at once, and hand them over; what is `fresh` in the queue has nothing to take over."""
        self.reuse.learn([start.task for start in starts])
        taken = self._take_over([start.task for start in starts if start.task.id not in fresh])
        wanted = [start for start in starts if start.task.id not in taken]
        return bool(taken) | (bool(wanted) and self._begin(wanted))

    def _begin(self, starts: Sequence[Start]) -> bool:
        assert self._term is not None
        lost = self.reuse.lost(start.task for start in starts)
        self.executor.open()
        attempts = {start.task.id: attempt_of(start, self.reuse) for start in starts}
        ids = {attempt.id for attempt in attempts.values()}
        term = self._term
        self._running.begun |= ids
        begun = self.store.start(
            [
                Begun(attempts[one.task.id], self.reuse.toolchain_of(one.task), self.reuse.digest(one.task), term)
                for one in starts
            ]
        )
        self._running.begun -= ids - begun
        going = {attempt.id: attempt for attempt in attempts.values() if attempt.id in begun}
        lacking = {one: lost[task_of(one)] for one in going if task_of(one) in lost}
        if lacking:
            self._running.end_without_inputs(lacking, going)
            self.reuse.forget()
        self._hand_over({one: attempt for one, attempt in going.items() if one not in lacking})
        return bool(begun)

    def _hand_over(self, attempts: Mapping[str, Attempt]) -> None:
        """Have attempts run; where that can't be, their tasks are queued again."""
        if not attempts:
            return
        self._running.hand({one: attempt.places for one, attempt in attempts.items()})
        try:
            refused = self.executor.start(list(attempts.values()))
        except Unreachable as error:
            running = self.executor.running()
            self._refuse({one: str(error) for one in attempts if one not in running}, attempts)
            raise
        self._refuse(refused, attempts)

    def _refuse(self, reasons: Mapping[str, str], attempts: Mapping[str, Attempt]) -> None:
        for attempt in attempts:
            self._hold_offs.note(task_of(attempt), reasons.get(attempt))
        back = {one: Failure(FailureKind.HANDED_BACK, reason) for one, reason in reasons.items()}
        self._running.end_early(back, attempts)


def _moved(task: OpenTask, states: Mapping[str, TaskState]) -> OpenTask:
    if task.id not in states:
        return task
    return replace(task, state=states[task.id], waits_for=None, is_stuck=False)


def _is_new(wait: Wait) -> bool:
    return (wait.task.waits_for, wait.task.is_stuck) != (wait.reason, wait.is_stuck)
