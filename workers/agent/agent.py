"""The agent of a node: runs attempts in threads, keeps their results until they are acknowledged, follows one leader.

Every call carries the caller's term; those of a term that is not the newest are refused. The leader renews the agent's
lease as long as it lives: without that the agent ends all that it runs, and itself.
"""

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jobs.errors import BadSetting
from jobs.state import Failure, FailureKind
from jobs.task import Attempt, LogChunk, Node, TaskResult
from jobs.toolchains import Lock
from workers import daemon_log
from workers.agent import draining, ports
from workers.agent.builds import ToolchainBuilder
from workers.agent.draining import Drain
from workers.agent.log_parts import read_part
from workers.agent.protocol import AgentConfig, AgentStatus, LaunchRequest, PollResponse, StaleTerm
from workers.agent.single_instance import acquire_single_instance_lock
from workers.agent.store_access import StoreAccess
from workers.attempts.attempt_log import log_end, log_start
from workers.attempts.folders import clear_leftovers, log_path
from workers.attempts.run_task import run
from workers.failures import tail
from workers.machine.devices import NodeDescription
from workers.processes.cancellation import Cancellation
from workers.processes.lease import Lease, boot_clock_s
from workers.processes.stage_user import expect_runnable, stage_user
from workers.toolchain_probe import probe_toolchain
from workers.toolchains.environments import Environments

logger = daemon_log.logger(__name__)

MONITOR_INTERVAL_S = 0.5  #: between two checks of the lease, and of whether the node is to be drained
EXIT_GRACE_S = 5.0  #: for attempts to end when the lease is over
MAX_THREADS = 4096
MAX_REMEMBERED = 10_000  #: ids of attempts that are not started again
DATA_VARIABLE = "HALOCTL_DATA"
AFTER_ALL_TERMS = sys.maxsize  #: the term of an agent whose lease is over, so that it refuses every leader

DRAIN_REASONS = {
    Drain.FINISH: "it is being drained: what runs there may finish",
    Drain.REQUEUE: "it is being drained: what ran there is requeued",
}


@dataclass
class _RunningAttempt:
    """An attempt that has not ended."""

    request: LaunchRequest
    cancellation: Cancellation
    is_requeued: bool = False
    is_dropped: bool = False  #: nobody wants its result


class Agent:
    """Runs the attempts that one node is given.

    Every method but `stop` returns within milliseconds, unless asked to wait, and may be called from any thread. All
    raise StaleTerm for a term lower than one that they have seen.
    """

    def __init__(
        self, config: AgentConfig, create_description: Callable[[str], NodeDescription] = NodeDescription
    ) -> None:
        """End and remove what a killed agent left in its data folder; on a node of a cluster also a living agent."""
        data = os.environ.get(DATA_VARIABLE) if config.is_member else None
        self._data = Path(data or config.data).absolute()
        if config.is_member:
            daemon_log.configure("agent", file=self._data / "logs" / "agent.log")
        self._config = config
        self._trouble: str | None = None  #: why nothing can run here, whatever the store
        self._changed = threading.Condition()
        location = config.artifacts or self._data / "artifacts"
        self._access = StoreAccess(location, self._data, config.mark, self._notify)
        self._replace_predecessor()
        self._description = create_description(config.node)
        self._sent_node: Node | None = None  #: the description that the leader has
        self._sent_builds: Mapping[str, str] = {}  #: the state of toolchains that the leader has
        self._builds = ToolchainBuilder(Environments(self._data), self._notify)
        self._toolchain = probe_toolchain(self._data / "cache")
        self._term = 0
        self._cursor = 0  #: the number of the latest result
        self._running: dict[str, _RunningAttempt] = {}
        self._results: dict[str, tuple[int, LaunchRequest, TaskResult]] = {}  #: not acknowledged yet
        self._waits: dict[str, str] = {}  #: by attempt, why its files wait for the store: nothing new starts meanwhile
        self._known: dict[str, None] = {}  #: ids that are not started, or not again; the oldest first
        self._drain: Drain | None = None
        self._is_stopped = False
        self._threads = ThreadPoolExecutor(MAX_THREADS)
        self._lease = Lease(config.lease_s) if math.isfinite(config.lease_s) else None  #: of the supervisors
        self._lease_end_s = boot_clock_s() + config.lease_s
        if config.is_member:
            threading.Thread(target=self._monitor, name="monitor", daemon=True).start()

    def accept_leader(self, term: int, expected: Mapping[str, int]) -> AgentStatus:
        """Accept a leader, or tell one that lost sight of this agent what it runs.

        `expected` are the attempts that the leader takes to be here, with their epochs. Others are ended and their
        results dropped. Those that are not here are never started, should a request for them be under way.
        """
        with self._changed:
            self._expect(term)
            logger.info("the head of term %d leads, and expects %d attempts", term, len(expected), term=term)
            self._changed.notify_all()  # the polls of an earlier leader
            for running in self._running.values():
                attempt = running.request.attempt
                if expected.get(attempt.id) != attempt.epoch:
                    running.is_dropped = True
                    running.cancellation.cancel()
            self._forget([id for id, (_, _, result) in self._results.items() if expected.get(id) != result.epoch])
            groups = {id: running.request.group for id, running in self._running.items() if not running.is_dropped}
            groups |= {id: request.group for id, (_, request, _) in self._results.items()}
            self._remember(expected.keys() - groups.keys())
            self._sent_node, self._sent_builds = self._description.current(), self._builds.state
            node = self._complete(self._sent_node)
            return AgentStatus(
                node, self._toolchain, self._config.raylet, groups, boot_clock_s(), self._cordon_reason()
            )

    def start(self, term: int, requests: Iterable[LaunchRequest]) -> list[str]:
        """Start attempts; a second call for the same attempt never changes anything.

        Returns the ids of those that must not be started any more. A stopped agent returns results of kind cancelled.
        """
        with self._changed:
            self._expect(term)
            refused = []
            for request in requests:
                id = request.attempt.id
                if id not in self._known:
                    self._begin(request)
                elif id not in self._running and id not in self._results:
                    refused.append(id)
            return refused

    def build(self, term: int, locks: Sequence[Lock]) -> Mapping[str, str]:
        """Queue toolchains to be built, one after another; polls return what came of it.

        Returns the state of the toolchains known so far, by digest: empty for one that is built, else why it can't be.
        """
        with self._changed:
            self._expect(term)
        return self._builds.request(locks)

    def renew(self, term: int, answered_at_s: float) -> float:
        """Extend the lease from `answered_at_s`, the agent's clock in the latest answer that the leader has.

        So the leader, which counts from when it had that answer, never believes a lease over that is not. Returns the
        agent's clock.
        """
        with self._changed:
            self._expect(term)
            self._lease_end_s = max(self._lease_end_s, answered_at_s + self._config.lease_s)
        if self._lease:
            self._lease.renew(answered_at_s)
        return boot_clock_s()

    def poll(
        self,
        term: int,
        after: int = 0,
        forget: Iterable[str] = (),
        cordon_reason: str | None = None,
        wait_s: float = 0.0,
    ) -> PollResponse:
        """Forget acknowledged results, and return those with higher numbers than `after`.

        Waits up to `wait_s` for a result, or until the reason for which the node is cordoned differs from the given
        one, or until something changed in the toolchains.
        """
        self._access.open_if_needed()
        with self._changed:
            self._expect(term)
            self._forget(forget)
            self._changed.wait_for(
                lambda: (
                    self._cursor > after
                    or self._cordon_reason() != cordon_reason
                    or self._term != term
                    or self._builds.has_news
                    or self._builds.state != self._sent_builds
                ),
                wait_s,
            )
            self._expect(term)
            results = [result for number, _, result in self._results.values() if number > after]
            node = self._changed_node()
            return PollResponse(results, self._cursor, self._cordon_reason(), node, self._builds.take_built())

    def forget(self, term: int, attempts: Iterable[str]) -> None:
        """Forget some attempts' results: the leader has stored them."""
        with self._changed:
            self._expect(term)
            self._forget(attempts)

    def cancel(self, term: int, attempts: Iterable[str]) -> None:
        """Ask attempts to end. Each has a result of kind cancelled when no process of it is left.

        Attempts that do not run are ignored.
        """
        with self._changed:
            self._expect(term)
            cancellations = [self._running[id].cancellation for id in attempts if id in self._running]
        for cancellation in cancellations:
            cancellation.cancel()

    def read_logs(self, term: int, offsets: Mapping[str, int]) -> list[tuple[LogChunk, int]]:
        """Return what attempts wrote to their logs from these offsets on, each with the offset where it ends.

        A long log is returned in parts, by as many calls.
        """
        with self._changed:
            self._expect(term)
        parts = (read_part(id, log_path(self._data, id), offset) for id, offset in offsets.items())
        return [part for part in parts if part[0].text]

    def free_port(self, term: int) -> int:
        """Return a free port of this node for a gang's first rank, which is some seconds from listening at it."""
        with self._changed:
            self._expect(term)
        return ports.free_port()

    def stop(self, term: int, timeout_s: float = 30.0) -> bool:
        """End everything and start nothing more; whether all had ended in time. Results can still be polled."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._expect(term)
            self._is_stopped = True
            cancellations = [running.cancellation for running in self._running.values()]
        self._builds.stop()
        for cancellation in cancellations:
            cancellation.cancel()
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, deadline - time.monotonic())

    def _changed_node(self) -> Node | None:
        """Return the node where its description has changed since it was sent.

        It is not refreshed while something runs, which that might disturb.
        """
        node, builds = self._description.current(may_refresh=not self._running), self._builds.state
        if node is self._sent_node and builds == self._sent_builds:
            return None
        self._sent_node, self._sent_builds = node, builds
        return self._complete(node)

    def _complete(self, node: Node) -> Node:
        return replace(node, address=self._config.address, toolchains=self._sent_builds)

    def _notify(self) -> None:
        """Wake the leader's poll: something became of the store, or of a build."""
        with self._changed:
            self._changed.notify_all()

    def _expect(self, term: int) -> None:
        if term < self._term:
            raise StaleTerm(term, self._term)
        self._term = term

    def _begin(self, request: LaunchRequest) -> None:
        running = _RunningAttempt(request, Cancellation())
        if self._is_stopped:
            running.cancellation.cancel()
        self._running[request.attempt.id] = running
        self._remember([request.attempt.id])
        log_start(logger, request.attempt)
        self._threads.submit(self._run, running)

    def _remember(self, attempts: Collection[str]) -> None:
        self._known |= dict.fromkeys(attempts)
        if len(self._known) > 2 * MAX_REMEMBERED:
            newest = dict.fromkeys(list(self._known)[-MAX_REMEMBERED:])
            self._known = dict.fromkeys(self._running) | dict.fromkeys(self._results) | newest

    def _forget(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self._results.pop(attempt, None)

    def _run(self, running: _RunningAttempt) -> None:
        attempt = running.request.attempt
        result = self._result_of(attempt, running.cancellation)
        if attempt.toolchain and result.failure:
            self._builds.check(attempt.toolchain)
        if running.is_requeued and result.failure and result.failure.kind is FailureKind.CANCELLED:
            # it was ended for its node's sake, and not cancelled by anybody
            failure = Failure(FailureKind.REQUEUED, f"node {self._config.node} was drained")
            result = replace(result, failure=failure)
        log_end(logger, result, self._config.node)
        with self._changed:
            del self._running[attempt.id]
            if not running.is_dropped:
                self._cursor += 1
                self._results[attempt.id] = (self._cursor, running.request, result)
            self._changed.notify_all()

    def _result_of(self, attempt: Attempt, cancellation: Cancellation) -> TaskResult:
        """Run an attempt; every exception becomes a failure, also one that nobody has thought of."""
        store = self._access.wait_for_store()
        if store is None or self._trouble:
            kind = FailureKind.NODE_UNFIT if self._trouble else FailureKind.STORE_UNUSABLE
            failure = Failure(kind, self._trouble or self._access.trouble or "")
            return TaskResult(attempt.id, attempt.epoch, failure)
        report_wait = partial(self._note_wait, attempt.id)
        try:
            result = run(
                attempt, self._data, store, self._toolchain, cancellation, self._lease, report_wait=report_wait
            )
            if result.failure and result.failure.kind is FailureKind.STORE_UNUSABLE:
                self._access.check_store()
            return result
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            failure = Failure(FailureKind.INTERNAL, message, tail(traceback.format_exc()))
            return TaskResult(attempt.id, attempt.epoch, failure)

    def _note_wait(self, attempt: str, reason: str | None) -> None:
        """Note why an attempt's files wait for the store, or with None that they do no more."""
        with self._changed:
            if reason is None:
                self._waits.pop(attempt, None)
            else:
                self._waits[attempt] = reason
            self._changed.notify_all()

    def _replace_predecessor(self) -> None:
        """On a node of a cluster become its only agent; end and remove what earlier ones left."""
        try:
            self._lock = acquire_single_instance_lock(self._data) if self._config.is_member else None
        except OSError as error:
            self._trouble = f"its data folder {self._data} can't be written: {error.strerror}"
        clear_leftovers(self._data)
        try:
            expect_runnable(stage_user())
        except BadSetting as error:
            self._trouble = str(error)

    def _cordon_reason(self) -> str | None:
        if self._drain:
            return DRAIN_REASONS[self._drain]
        return self._trouble or self._access.trouble or next(iter(self._waits.values()), None)

    def _monitor(self) -> None:
        """Check for drain requests until the lease is over, and then exit."""
        with self._changed:
            while boot_clock_s() < self._lease_end_s:
                self._check_drain()
                self._changed.wait(MONITOR_INTERVAL_S)
            self._term = AFTER_ALL_TERMS
        logger.error("no head has renewed the lease: all that runs is ended, and this agent")
        self.stop(AFTER_ALL_TERMS, EXIT_GRACE_S)
        os._exit(1)  # the supervisors of what has not ended end it

    def _check_drain(self) -> None:
        drain = draining.requested(self._data)
        if drain is not self._drain:
            self._drain = drain
            logger.info("%s", DRAIN_REASONS[drain] if drain else "it is not being drained any more")
            self._changed.notify_all()
        if drain is Drain.REQUEUE:
            for running in self._running.values():
                running.is_requeued = True
                running.cancellation.cancel()
        if drain and not self._running and not self._results and not draining.is_drained(self._data):
            draining.mark_drained(self._data)
