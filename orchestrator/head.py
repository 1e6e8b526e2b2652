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
from db.store import Begun, LeaderKind, OpenTask, RunningAttempt, Snapshot, Store, utc_now
from jobs.errors import Unreachable
from jobs.stages import stage_of
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Attempt, Place, TaskResult
from orchestrator import scheduler
from orchestrator.executor import Executor
from orchestrator.holdoffs import HoldOffs
from orchestrator.reuse import Reuse
from orchestrator.scheduler import Block, Queue, Start, Wait
from orchestrator.upkeep import LOGS_EVERY_S, Upkeep

TICK_S = 1.0
DECIDE_AGAIN_S = 10.0
NOBODY_RUNS_IT = Failure(FailureKind.LEASE_LOST, "nobody runs it any more")
NEVER_STARTED = Failure(FailureKind.HANDED_BACK, "it was not started: the head lost the database or the cluster then")
LEADER_ENDED = Failure(FailureKind.HANDED_BACK, "the process that led was ended")


@dataclass
class Head:
    """The loop's one step; it owns the executor."""

    store: Store
    executor: Executor
    reuse: Reuse
    kind: LeaderKind = LeaderKind.EMBEDDED
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
    _term: int | None = None
    _is_leading: bool = False
    _results: list[TaskResult] = field(default_factory=list)  #: collected, and not stored yet
    _begun: set[str] = field(default_factory=set)  #: attempts that are this head's: it began them, or took them over
    _handed: dict[str, tuple[Place, ...]] = field(default_factory=dict)  #: those that the executor was given
    _asked_to_end: set[str] = field(default_factory=set)
    _given_back: dict[str, str] = field(default_factory=dict)  #: those of them whose node is handed back, and why
    _token: object = None
    _world: object = None  #: nodes, and which of them are closed, when it was last decided
    _tick_at: float = 0.0
    _decide_again_at: float = 0.0

    def __post_init__(self) -> None:
        """What a head does beside deciding."""
        self._upkeep = Upkeep(self.store, self.executor, self.clock)
        self._hold_offs = HoldOffs(self.clock)

    @property
    def pause_s(self) -> float:
        """How long nothing has to be done while nobody rings."""
        return LOGS_EVERY_S if self._upkeep.has_followers else TICK_S

    def step(self, *, starts: bool = True) -> bool:
        """Collect, decide, act; never waits. Tells whether anything happened.

        Nothing is read or decided while nothing was written, but for a look around every `TICK_S`: a head that works
        while others are timed would disturb them. Without `starts` what ends is stored, and nothing is started.
        Raises DatabaseUnreachable or ClusterUnreachable; the next step goes on where this one stopped.
        """
        self._lead()
        has_results = self._collect()
        token = self.store.database.change_token()
        is_tick = self.clock() >= self._tick_at
        self._keep_up(is_tick, token)
        if not has_results and token == self._token and not (is_tick and self._has_world_changed()):
            return False
        snapshot = self.store.snapshot()
        has_moved = self._tend(snapshot)
        if starts:
            has_moved |= self._decide(self.store.snapshot() if has_moved else snapshot)
            self._token, self._decide_again_at = token, self.clock() + DECIDE_AGAIN_S
        return has_results or has_moved

    def _keep_up(self, is_tick: bool, token: object) -> None:
        if is_tick:
            self.store.expire_jobs()
            self._tick_at = self.clock() + TICK_S
        if is_tick or token != self._token:
            self._upkeep.look()
        self._upkeep.copy_logs(self._handed)

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
        self.executor.close()
        self._store_results()
        mine = [running for running in self.store.snapshot().running if running.id in self._begun]
        self._give_up(mine, LEADER_ENDED)
        self._end_term()

    def leave(self) -> None:
        """Let go of what runs, for the next head to take over."""
        self.executor.leave()
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
        self._handed = {one.id: one.places for one in running}
        self._begun = set(self._handed)
        self._is_leading = True

    def _end_term(self) -> None:
        if self._term is not None:
            self.store.end_term(self._term)

    def _collect(self) -> bool:
        """Store what came in. No more is collected before that: collecting tells agents that they may forget."""
        self._results = self._results or [self._as_handed_back(result) for result in self.executor.collect(0.0)]
        return self._store_results()

    def _store_results(self) -> bool:
        """Store what was collected; what is not stored yet when something is raised is tried again."""
        results, was = self._results, bool(self._results)
        if was:
            self.store.finish(results)
            self._forget([result.attempt for result in results])
            self._results = []
        return was

    def _forget(self, attempts: Collection[str]) -> None:
        for attempt in attempts:
            self._handed.pop(attempt, None)
            self._given_back.pop(attempt, None)
            for held in (self._begun, self._asked_to_end):
                held.discard(attempt)

    def _as_handed_back(self, result: TaskResult) -> TaskResult:
        """Nobody cancelled what was ended for its node's sake."""
        why = self._given_back.get(result.attempt)
        if why is None or result.failure is None or result.failure.kind is not FailureKind.CANCELLED:
            return result
        return replace(result, failure=Failure(FailureKind.HANDED_BACK, why))

    def _tend(self, snapshot: Snapshot) -> bool:
        """End what was cancelled and what nobody waits for, and give up what nobody runs; whether a task moved."""
        here = self.executor.running()
        for stray in self._strays(snapshot):
            self._end(stray)
        for running in snapshot.running:
            if running.id in here:
                self._end_if_asked(running, snapshot)
        gone = [running for running in snapshot.running if running.id not in here]
        unstarted = [running for running in gone if running.id in self._begun and running.id not in self._handed]
        self._give_up(unstarted, NEVER_STARTED)
        self._give_up([running for running in gone if running not in unstarted], NOBODY_RUNS_IT)
        return bool(gone)

    def _end_if_asked(self, running: RunningAttempt, snapshot: Snapshot) -> None:
        """What was cancelled, and what is on a node whose work is handed back."""
        if running.state is TaskState.CANCELLING:
            self._end(running.id)
            return
        for place in running.places:
            if place.node in snapshot.handing_back:
                self._given_back[running.id] = f"node {place.node}: {snapshot.closed[place.node]}"
                self._end(running.id)

    def _strays(self, snapshot: Snapshot) -> set[str]:
        """What runs here and was given back by somebody else, who led meanwhile."""
        return self.executor.running() - {running.id for running in snapshot.running}

    def _end(self, attempt: str) -> None:
        if attempt not in self._asked_to_end:
            self._asked_to_end.add(attempt)
            self.executor.cancel(attempt)

    def _give_up(self, attempts: Sequence[RunningAttempt], failure: Failure) -> None:
        if attempts:
            self.store.finish([TaskResult(one.id, one.epoch, failure) for one in attempts])
            self._forget([one.id for one in attempts])

    def _decide(self, snapshot: Snapshot) -> bool:
        """Let the scheduler decide, and carry it out; what somebody else changed meanwhile is left to the next step."""
        nodes, closed = self.executor.nodes(), self.executor.closed()
        self._world = (tuple(nodes), dict(closed))
        self._upkeep.see(nodes)
        seen = replace(snapshot, closed={**self._closed_by_strays(snapshot), **closed, **snapshot.closed})
        actions = self._hold_offs.apply(scheduler.decide(seen, nodes, self.reuse.twins(seen), self.now()))
        queued = self._queue([action.task for action in actions if isinstance(action, Queue)])
        blocks = {action.task.id: action.reason for action in actions if isinstance(action, Block)}
        waits = [action for action in actions if isinstance(action, Wait) and _is_new(action)]
        if blocks:
            self.store.block(blocks)
        if waits:
            self.store.set_waits({wait.task.id: (wait.reason, wait.is_stuck) for wait in waits})
        started = self._start([action for action in actions if isinstance(action, Start)])
        return bool(queued or blocks or waits or started)

    def _closed_by_strays(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Nothing is started beside what is still being ended."""
        strays = self._strays(snapshot)
        return {place.node: f"ends {stray} first" for stray in strays for place in self._handed.get(stray, ())}

    def _queue(self, tasks: Sequence[OpenTask]) -> bool:
        if tasks:
            self.store.queue([task.id for task in tasks])
            self.reuse.learn(tasks)
            self._take_over(tasks)
        return bool(tasks)

    def _take_over(self, tasks: Sequence[OpenTask]) -> set[str]:
        """Take earlier tasks' outputs instead of running; the ids of the tasks that this did for."""
        found = self.reuse.found(tasks)
        if found:
            self.store.take_over(found)
        return {one.task for one in found}

    def _start(self, starts: Sequence[Start]) -> bool:
        """Begin attempts, all at once, and hand them over."""
        if not starts:
            return False
        self.reuse.learn([start.task for start in starts])
        taken = self._take_over([start.task for start in starts])
        wanted = [start for start in starts if start.task.id not in taken]
        if wanted:
            self.executor.open()
            attempts = {start.task.id: self._attempt(start) for start in wanted}
            self._begun |= {attempt.id for attempt in attempts.values()}
            begun = self.store.start([self._begin(start.task, attempts[start.task.id]) for start in wanted])
            missing = {start.task.id: self.reuse.missing(start.task) for start in wanted}
            self._finish_early([(attempts[task], failure) for task, failure in missing.items() if failure])
            ready = [attempt for task, attempt in attempts.items() if not missing[task] and attempt.id in begun]
            self._hand_over(ready)
        return True

    def _attempt(self, start: Start) -> Attempt:
        task = start.task
        return Attempt(
            id=f"{task.id}-{task.attempts + 1}",
            epoch=task.epoch + 1,
            stage=task.stage,
            settings=task.settings,
            commands=tuple(stage_of(task.stage, task.settings).commands(task.settings, self.reuse.toolchain)),
            inputs=self.reuse.inputs(task),
            places=start.places,
            timeout_s=task.timeout_s,
            cpus=task.resources.cpus,
        )

    def _begin(self, task: OpenTask, attempt: Attempt) -> Begun:
        assert self._term is not None
        return Begun(attempt, self.reuse.toolchain, self.reuse.digest(task), self._term)

    def _hand_over(self, attempts: Sequence[Attempt]) -> None:
        """Have attempts run; where that can't be, their tasks are queued again."""
        if not attempts:
            return
        self._handed |= {attempt.id: attempt.places for attempt in attempts}
        try:
            refused = self.executor.start(attempts)
        except Unreachable as error:
            running = self.executor.running()
            refused = {attempt.id: str(error) for attempt in attempts if attempt.id not in running}
            self._refuse(attempts, refused)
            raise
        self._refuse(attempts, refused)

    def _refuse(self, attempts: Sequence[Attempt], reasons: Mapping[str, str]) -> None:
        for attempt in attempts:
            self._hold_offs.note(task_of(attempt.id), reasons.get(attempt.id))
        refused = [attempt for attempt in attempts if attempt.id in reasons]
        self._finish_early([(one, Failure(FailureKind.HANDED_BACK, reasons[one.id])) for one in refused])

    def _finish_early(self, ended: Sequence[tuple[Attempt, Failure]]) -> None:
        """End attempts that never ran."""
        if ended:
            self.store.finish([TaskResult(attempt.id, attempt.epoch, failure) for attempt, failure in ended])
            self._forget([attempt.id for attempt, _ in ended])


def _is_new(wait: Wait) -> bool:
    return (wait.task.waits_for, wait.task.is_stuck) != (wait.reason, wait.is_stuck)
