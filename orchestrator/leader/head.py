"""The head: reads a snapshot, lets the scheduler decide, carries the decisions out, stores the results.

The leader may be a daemon or a `submit --wait`: there is one at a time, and the database is the only truth.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from db.reads import reports
from db.schema.ids import task_of
from db.store import LeaderKind, Snapshot, Store, utc_now
from jobs.errors import Unreachable
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import TaskResult
from orchestrator.analysis.gating import apply_gates
from orchestrator.executor import Executor
from orchestrator.formatting import format_count
from orchestrator.leader.backoff import TaskBackoff
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.held_attempts import HeldAttempts
from orchestrator.leader.isolation import failures_of_each
from orchestrator.leader.launch import Launcher
from orchestrator.leader.maintenance import LOGS_EVERY_S, Maintenance
from orchestrator.leader.schedules import Schedules
from orchestrator.leader.statistics import Statistics
from orchestrator.leader.toolchain_builds import ToolchainBuilds
from orchestrator.leader.toolchain_locks import Resolver, ToolchainLocks
from orchestrator.leader.transitions import apply_transitions, with_states
from orchestrator.scheduler import decision
from orchestrator.scheduler.decision import Start, Wait
from workers import daemon_log

logger = daemon_log.logger(__name__)

TICK_S = 1.0
DECIDE_EVERY_S = 10.0
LEADER_ENDED = Failure(FailureKind.REQUEUED, "the process that led was ended")


@dataclass
class Head:
    """One term of leadership, step by step; it owns the executor."""

    store: Store
    executor: Executor
    cache: OutputCache
    resolver: Resolver
    kind: LeaderKind = LeaderKind.EMBEDDED
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
    schedules: Schedules | None = None  #: submitted when they are due
    statistics: Statistics = field(default_factory=Statistics)
    _term: int | None = None
    _has_started: bool = False  #: the executor has started the term
    _results: list[TaskResult] = field(default_factory=list)  #: collected, and not stored yet
    _token: object = None  #: the database's change token at the last decision
    _world: object = None  #: nodes and cordons at the last decision
    _tick_at: float = 0.0
    _decide_at: float = 0.0  #: the next decision if nothing changes

    def __post_init__(self) -> None:
        """Make the parts of the loop."""
        self._attempts = HeldAttempts(self.store, self.executor, self.statistics)
        self._maintenance = Maintenance(self.store, self.executor, self.clock, self.statistics)
        self._backoff = TaskBackoff(self.clock)
        self._locks = ToolchainLocks(self.store, self.resolver, self.clock)
        self._builds = ToolchainBuilds(self.executor)
        self._launcher = Launcher(self._attempts, self.cache, self._backoff)

    def set_wakeup(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever a step may have something to do."""
        self.executor.set_wakeup(wake)
        self._locks.wake = wake

    @property
    def pause_s(self) -> float:
        """The longest pause between two steps without a wakeup."""
        return LOGS_EVERY_S if self._maintenance.has_followers else TICK_S

    def step(self, *, starts: bool = True) -> bool:
        """Collect results, decide, act, without waiting; return whether anything happened.

        Without `starts` results are stored, and nothing is started. Nothing is read or decided while nothing was
        written, but for a check every `TICK_S`: a head that works while others are timed would disturb them.
        Raises DatabaseUnreachable, ClusterUnreachable or StorageUnusable; the next step goes on where this one stopped.
        """
        self._start_term()
        has_results = self._collect()
        token = self.store.database.change_token()
        is_new, is_tick = token != self._token, self.clock() >= self._tick_at
        if is_tick:
            self.store.expire_jobs()
            if self.schedules is not None:
                self.schedules.submit_due(self.now())
            self._tick_at = self.clock() + TICK_S
        has_moved = False
        if has_results or is_new or self._locks.has_news() or (is_tick and self._needs_decision()):
            has_moved = self._reconcile_and_decide(starts=starts)
            self._token = token if starts else None
        if is_new or is_tick:
            self._maintenance.update_followed()
        self._maintenance.copy_logs(self._attempts.dispatched)
        return has_results or has_moved

    def is_newest(self) -> bool:
        """Whether nobody has led since this head's term started."""
        leader = reports.leader(self.store.database)
        return self._term is None or (leader is not None and leader.id == self._term)

    def stop(self) -> None:
        """End what this head runs and requeue it, so that anybody may lead next.

        Attempts that another leader has started meanwhile are left to it.
        """
        self._locks.close()
        try:
            if self._has_started:
                self._collect()
        finally:
            self.executor.close()
        running = self.store.snapshot().running
        self._attempts.fail([attempt for attempt in running if attempt.id in self._attempts.started], LEADER_ENDED)
        self._end_term()

    def detach(self) -> None:
        """Leave what runs to the next head, which adopts it."""
        self._locks.close()
        self.executor.detach()  # agents keep the results that were not collected for the next head
        self._store_results()
        self._end_term()

    def _start_term(self) -> None:
        """Start the term once, and adopt what an earlier leader left running."""
        if self._has_started:
            return
        if self._term is None:
            self._term = self.store.start_term(self.kind, socket.gethostname(), os.getpid())
        running = self.store.snapshot().running
        logger.info(
            "term %d begins, with %s running", self._term, format_count(len(running), "attempt"), term=self._term
        )
        self.executor.start_term(self._term, running)
        self._attempts.adopt(running)
        self.cache.clear()
        self._has_started = True

    def _end_term(self) -> None:
        if self._term is not None:
            self.store.end_term(self._term)

    def _collect(self) -> bool:
        """Store the results that came in. More are collected only after that, because it lets agents forget them."""
        self._results = self._results or [self._attempts.as_requeued(result) for result in self.executor.collect(0.0)]
        return self._store_results()

    def _store_results(self) -> bool:
        """Store what was collected; what an error leaves unstored is tried again."""
        results, has_results = self._results, bool(self._results)
        if has_results:
            self._attempts.finish(self._gated(results))
            for result in results:
                if result.failure and result.failure.kind is FailureKind.STORE_UNUSABLE:
                    self._backoff.note_store_fault(task_of(result.attempt), result.failure.message)
            self._results = []
            if any(result.lost for result in results):
                self.cache.clear()
        return has_results

    def _gated(self, results: Sequence[TaskResult]) -> list[TaskResult]:
        """Apply gates; a result for which that raises is an internal failure."""
        try:
            return apply_gates(self.store.database, results)
        except Unreachable:
            raise
        except Exception:
            gated: list[TaskResult] = []
            for result, failure in failures_of_each(
                results, lambda result: gated.extend(apply_gates(self.store.database, [result]))
            ):
                gated.append(replace(result, failure=failure, measurements=()))
            return gated

    def _needs_decision(self) -> bool:
        if self.clock() >= min(self._decide_at, self._backoff.next_at()):
            return True
        return (tuple(self.executor.nodes()), dict(self.executor.cordoned())) != self._world

    def _reconcile_and_decide(self, *, starts: bool) -> bool:
        snapshot = self.store.snapshot()
        has_moved = self._attempts.reconcile(snapshot)
        snapshot = self.statistics.snapshot = self.store.snapshot() if has_moved and starts else snapshot
        if starts:
            began = time.monotonic()
            has_moved |= self._decide(snapshot)
            self.statistics.decisions.add(time.monotonic() - began)
            self._decide_at = self.clock() + DECIDE_EVERY_S
        return has_moved

    def _decide(self, snapshot: Snapshot) -> bool:
        """Let the scheduler decide, and carry it out; what somebody else changed meanwhile is left to the next step."""
        self._builds.allow_retries(snapshot)
        nodes, cordoned = self.executor.nodes(), self.executor.cordoned()
        self._world = (tuple(nodes), dict(cordoned))
        self._maintenance.record_nodes(nodes, cordoned)
        strays = self._attempts.cordoned_by_strays(snapshot)
        snapshot = replace(snapshot, cordoned={**strays, **cordoned, **snapshot.cordoned})
        snapshot, moved = self._resolve_toolchains(snapshot)
        while True:
            duplicates = self.cache.duplicates(snapshot)
            tasks = self.cache.with_defects(snapshot.tasks)
            snapshot = snapshot if tasks is snapshot.tasks else replace(snapshot, tasks=tasks)
            decided = decision.decide(snapshot, nodes, duplicates, self.now())
            actions = self._backoff.apply(decided)
            states = apply_transitions(actions, self.store, self.cache, self._builds)
            if not states:
                break
            moved |= states
            snapshot = replace(snapshot, tasks=with_states(snapshot.tasks, states))
        self._backoff.retain(
            (task.id for task in snapshot.tasks if task.state is TaskState.QUEUED),
            (attempt.task for attempt in snapshot.running),
        )
        self._builds.request(actions, snapshot)
        assert self._term is not None
        starts = [action for action in actions if isinstance(action, Start)]
        has_started = self._launcher.launch(starts, moved.keys(), self._term)
        waits = [action for action in actions if isinstance(action, Wait) and _is_news(action)]
        if waits:
            self.store.set_wait_reasons({wait.task.id: (wait.reason, wait.is_unschedulable) for wait in waits})
        return bool(moved or has_started or waits)

    def _resolve_toolchains(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, TaskState]]:
        """Return the snapshot with resolved toolchains, and the states of tasks that the cache can serve now."""
        snapshot = self._locks.update(snapshot, self.executor.built_toolchains())
        self.cache.set_locks(snapshot.locks)
        tasks = self.cache.newly_resolved(snapshot.tasks) if snapshot.locks else []
        self.cache.compute_digests(tasks)
        states: dict[str, TaskState] = dict.fromkeys(self.cache.apply(tasks), TaskState.CACHED)
        return replace(snapshot, tasks=with_states(snapshot.tasks, states)) if states else snapshot, states


def _is_news(wait: Wait) -> bool:
    return (wait.task.waits_for, wait.task.is_unschedulable) != (wait.reason, wait.is_unschedulable)
