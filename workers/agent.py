"""The agent of a node: runs attempts in threads, keeps their results until they are taken, and obeys the newest head.

Every call of a head carries its term; those of a head that is not the newest are refused. A head renews the agent's
lease as long as it lives: without that the agent ends all that it runs, and itself.
"""

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.state import Failure, FailureKind
from jobs.task import Attempt, LogChunk, Node, TaskResult
from jobs.toolchains import Lock
from workers import draining, ports
from workers.alone import be_alone
from workers.builds import Builds
from workers.devices import Description
from workers.draining import Drain
from workers.environment import probe_toolchain
from workers.failures import tail
from workers.folders import clear_leftovers, log_path
from workers.log_parts import read_part
from workers.orders import Answer, Order, Post, Report, Superseded
from workers.processes import Cancellation, Lease
from workers.run_task import run
from workers.store_access import StoreAccess
from workers.toolchains.environments import Environments

LOOK_S = 0.5  #: how often an agent looks at its lease, and for a wish to drain
LAST_WORDS_S = 5.0  #: what an agent whose lease is over gives its attempts to end
THREADS = 4096
REMEMBERED = 10_000  #: attempts that were here and are not started again
DATA_VARIABLE = "HALOCTL_DATA"
NOBODYS_TERM = sys.maxsize

DRAINED = {
    Drain.FINISH: "it is being drained: what runs there may finish",
    Drain.HAND_BACK: "it is being drained: what ran there is handed back",
}


@dataclass
class _Running:
    """An attempt that has not ended."""

    order: Order
    cancellation: Cancellation
    is_handed_back: bool = False
    is_dropped: bool = False  #: nobody wants its result


class Agent:
    """Runs the attempts that one node is given. Every method but `stop` returns within milliseconds, unless asked to
    wait, and may be called from any thread. All raise Superseded for a term lower than one that they have heard."""

    def __init__(self, post: Post) -> None:
        """Ends and removes what a killed agent left in its data folder; on a node of a cluster also one that lives."""
        own = os.environ.get(DATA_VARIABLE) if post.is_member else None
        self._data = Path(own or post.data).absolute()
        self._post = post
        self._trouble: str | None = None  #: why nothing can run here, whatever the store
        self._changed = threading.Condition()
        where = post.artifacts or self._data / "artifacts"
        self._access = StoreAccess(where, self._data, post.mark, self._notify)
        self._be_alone()
        self._description = Description(post.node)
        self._told: Node | None = None  #: the description that a head has
        self._told_builds: Mapping[str, str] = {}  #: and what it has of toolchains
        self._builds = Builds(Environments(self._data), self._notify)
        self._toolchain = probe_toolchain(self._data / "cache")
        self._term = 0
        self._number = 0  #: of the latest result
        self._running: dict[str, _Running] = {}
        self._results: dict[str, tuple[int, Order, TaskResult]] = {}  #: not acknowledged yet
        self._seen: dict[str, None] = {}  #: ids that are never started, or started again; the oldest first
        self._drain: Drain | None = None
        self._is_stopped = False
        self._threads = ThreadPoolExecutor(THREADS)
        self._guards = Lease(post.lease_s) if math.isfinite(post.lease_s) else None
        self._lease_end = clock() + post.lease_s
        if post.is_member:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def obey(self, term: int, expected: Mapping[str, int]) -> Report:
        """Begin to obey a head, or tell one that lost sight of this agent what is here.

        `expected` are the attempts that the head takes to be here, with their epochs. Others end, and what they came
        to is dropped. Those that are not here are not started any more, should an order for them be under way.
        """
        with self._changed:
            self._expect(term)
            self._changed.notify_all()  # an earlier head's polls
            for running in self._running.values():
                attempt = running.order.attempt
                if expected.get(attempt.id) != attempt.epoch:
                    running.is_dropped = True
                    running.cancellation.cancel()
            self._forget([one for one, (_, _, result) in self._results.items() if expected.get(one) != result.epoch])
            has = {one: running.order.group for one, running in self._running.items() if not running.is_dropped}
            has |= {one: order.group for one, (_, order, _) in self._results.items()}
            self._remember(expected.keys() - has.keys())
            self._told, self._told_builds = self._description.node(), self._builds.state
            return Report(self._addressed(self._told), self._toolchain, self._post.raylet, has, clock(), self._closed())

    def start(self, term: int, orders: Iterable[Order]) -> list[str]:
        """Begin attempts; a second call for the same one changes nothing, ever. Returns those that are not to be
        started any more. A stopped agent answers with results of kind cancelled."""
        with self._changed:
            self._expect(term)
            refused = []
            for order in orders:
                if order.attempt.id not in self._seen:
                    self._begin(order)
                elif order.attempt.id not in self._running and order.attempt.id not in self._results:
                    refused.append(order.attempt.id)
            return refused

    def build(self, term: int, locks: Sequence[Lock]) -> Mapping[str, str]:
        """Have toolchains built, one after another; polls tell what came of it. Returns what is here, and why others
        can't be built, by digest: of what is asked for that is not known for now."""
        with self._changed:
            self._expect(term)
        return self._builds.ask(locks)

    def renew(self, term: int, heard: float) -> float:
        """Go on for a lease from `heard`: what the agent's clock was in the latest answer that the head has.

        So the head, which counts from when it had that answer, never believes a lease over that is not. Returns the
        clock.
        """
        with self._changed:
            self._expect(term)
            self._lease_end = max(self._lease_end, heard + self._post.lease_s)
        if self._guards:
            self._guards.renew(heard)
        return clock()

    def poll(
        self, term: int, after: int = 0, forget: Iterable[str] = (), closed: str | None = None, wait_s: float = 0.0
    ) -> Answer:
        """Forget some attempts' results and return those with higher numbers than `after`.

        Waits up to `wait_s` for a first one, or until the reason for which the node is closed is another one.
        """
        self._access.look()
        with self._changed:
            self._expect(term)
            self._forget(forget)
            self._changed.wait_for(
                lambda: (
                    self._number > after
                    or self._closed() != closed
                    or self._term != term
                    or self._builds.has_news
                    or self._builds.state != self._told_builds
                ),
                wait_s,
            )
            self._expect(term)
            found = [result for number, _, result in self._results.values() if number > after]
            return Answer(found, self._number, self._closed(), self._news(), self._builds.fetch())

    def forget(self, term: int, attempts: Iterable[str]) -> None:
        """Forget some attempts' results: the head has stored them."""
        with self._changed:
            self._expect(term)
            self._forget(attempts)

    def cancel(self, term: int, attempts: Iterable[str]) -> None:
        """Ask attempts to end; the result of each, of kind cancelled, comes when no process of it is left. Those that
        do not run are ignored."""
        with self._changed:
            self._expect(term)
            found = [self._running[one].cancellation for one in attempts if one in self._running]
        for cancellation in found:
            cancellation.cancel()

    def read_logs(self, term: int, offsets: Mapping[str, int]) -> list[tuple[LogChunk, int]]:
        """What attempts wrote to their logs from these bytes on, a part if it is much: each with where it ends."""
        with self._changed:
            self._expect(term)
        parts = (read_part(one, log_path(self._data, one), offset) for one, offset in offsets.items())
        return [part for part in parts if part[0].text]

    def free_port(self, term: int) -> int:
        """A port of this node for a gang's first rank, which is some seconds from listening at it."""
        with self._changed:
            self._expect(term)
        return ports.free_port()

    def stop(self, term: int, timeout_s: float = 30.0) -> bool:
        """End everything and run nothing more; whether all had ended in time. Results can still be polled."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._expect(term)
            self._is_stopped = True
            found = [running.cancellation for running in self._running.values()]
        self._builds.stop()
        for cancellation in found:
            cancellation.cancel()
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, deadline - time.monotonic())

    def _news(self) -> Node | None:
        """The node, where it is not what was last told. It is not looked at while something runs, which that might
        disturb."""
        found, builds = self._description.node(may_look=not self._running), self._builds.state
        if found is self._told and builds == self._told_builds:
            return None
        self._told, self._told_builds = found, builds
        return self._addressed(found)

    def _addressed(self, node: Node) -> Node:
        return replace(node, address=self._post.address, toolchains=self._told_builds)

    def _notify(self) -> None:
        """Tell the head at once what became of the store, or of a build."""
        with self._changed:
            self._changed.notify_all()

    def _expect(self, term: int) -> None:
        if term < self._term:
            raise Superseded(term, self._term)
        self._term = term

    def _begin(self, order: Order) -> None:
        running = _Running(order, Cancellation())
        if self._is_stopped:
            running.cancellation.cancel()
        self._running[order.attempt.id] = running
        self._remember([order.attempt.id])
        self._threads.submit(self._run, running)

    def _remember(self, attempts: Collection[str]) -> None:
        self._seen |= dict.fromkeys(attempts)
        if len(self._seen) > 2 * REMEMBERED:
            newest = dict.fromkeys(list(self._seen)[-REMEMBERED:])
            self._seen = dict.fromkeys(self._running) | dict.fromkeys(self._results) | newest

    def _forget(self, attempts: Iterable[str]) -> None:
        for attempt in attempts:
            self._results.pop(attempt, None)

    def _run(self, running: _Running) -> None:
        attempt = running.order.attempt
        result = self._result(attempt, running.cancellation)
        if attempt.toolchain and result.failure:
            self._builds.check(attempt.toolchain)
        with self._changed:
            del self._running[attempt.id]
            if not running.is_dropped:
                self._number += 1
                result = _handed_back(result, self._post.node) if running.is_handed_back else result
                self._results[attempt.id] = (self._number, running.order, result)
            self._changed.notify_all()

    def _result(self, attempt: Attempt, cancellation: Cancellation) -> TaskResult:
        """The border: whatever is raised in here was not thought of, and still becomes a result."""
        store = self._access.settled()
        if store is None or self._trouble:
            failure = Failure(FailureKind.NODE_UNFIT, self._trouble or self._access.trouble or "")
            return TaskResult(attempt.id, attempt.epoch, failure)
        try:
            result = run(attempt, self._data, store, self._toolchain, cancellation, self._guards)
            if result.failure and result.failure.kind is FailureKind.NODE_UNFIT:
                self._access.doubt()
            return result
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            failure = Failure(FailureKind.INTERNAL, message, tail(traceback.format_exc()))
            return TaskResult(attempt.id, attempt.epoch, failure)

    def _be_alone(self) -> None:
        """Be the only agent here if it has to be, with nothing left of earlier ones."""
        try:
            self._lock = be_alone(self._data) if self._post.is_member else None
        except OSError as error:
            self._trouble = f"its data folder {self._data} can't be written: {error.strerror}"
        clear_leftovers(self._data)

    def _closed(self) -> str | None:
        if self._drain:
            return DRAINED[self._drain]
        return self._trouble or self._access.trouble

    def _watch(self) -> None:
        """Look after the lease and the wish to drain, for good."""
        with self._changed:
            while clock() < self._lease_end:
                self._look_for_drain()
                self._changed.wait(LOOK_S)
            self._term = NOBODYS_TERM
        self.stop(NOBODYS_TERM, LAST_WORDS_S)
        os._exit(1)  # the guards of what has not ended end it

    def _look_for_drain(self) -> None:
        asked = draining.asked(self._data)
        if asked is not self._drain:
            self._drain = asked
            self._changed.notify_all()
        if asked is Drain.HAND_BACK:
            for running in self._running.values():
                running.is_handed_back = True
                running.cancellation.cancel()
        if asked and not self._running and not self._results and not draining.is_done(self._data):
            draining.tell_done(self._data)


def clock() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _handed_back(result: TaskResult, node: str) -> TaskResult:
    """What was ended for its node's sake was not cancelled by anybody."""
    if result.failure is None or result.failure.kind is not FailureKind.CANCELLED:
        return result
    return replace(result, failure=Failure(FailureKind.HANDED_BACK, f"node {node} was drained"))
