"""Leader election and the leader's loop: of a daemon until it is told to stop, of a command until its job has ended."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from db.connection.process_lock import ProcessLock
from db.reads import reports
from db.store import LeaderKind
from jobs.errors import AlreadyLeading, ClusterUnreachable, DatabaseUnreachable, StorageUnusable
from orchestrator.context import Context
from orchestrator.executor import Executor
from orchestrator.interrupts import Interrupts
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.head import Head
from orchestrator.leader.outages import OutageReporter
from orchestrator.leader.schedules import Schedules
from orchestrator.leader.statistics import Statistics
from orchestrator.leader.wakeup import WakeupEvent
from orchestrator.times import format_time
from orchestrator.toolchains import site_toolchains
from orchestrator.toolchains.resolving import UvResolver
from workers import daemon_log
from workers.processes.proc import is_alive
from workers.toolchain_probe import probe_toolchain

logger = daemon_log.logger(__name__)

ELECTION_EVERY_S = 0.1  #: between two tries to win the lead: nothing tells that a leader is gone
WATCH_S = 1.0
MAX_BREATH_S = 0.05
REFUSE_AFTER_S = 1.0  #: a process that merely asks whether anybody leads may be in the way for a moment
LOCK_DROPPED_S = 10.0  #: until a busy server drops the lock of a leader that was killed


class LeaderLoop:
    """Steps the head while this process leads, and tries to win the lead while it does not."""

    def __init__(
        self,
        context: Context,
        make_head: Callable[[], Head],
        *,
        resign: Callable[[Head], None] = Head.stop,
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        """`resign` is called with a head that has lost the lead; `may_lead` is asked before a new term starts."""
        self.wakeup = WakeupEvent()
        self.leader_lock = context.database.leader_lock()
        self._make_head, self._resign_with, self._may_lead = make_head, resign, may_lead
        self._head: Head | None = None
        self._times_acquired = 0
        self._is_observer = False
        self._next_step_at = 0.0
        self._watch = ExitStack()
        self._watch.enter_context(context.database.monitor_changes(self.wakeup.set))

    @property
    def is_leading(self) -> bool:
        """Whether this process is the one that runs tasks."""
        return self._head is not None

    @property
    def is_observer(self) -> bool:
        """Whether this process leaves the lead to others."""
        return self._is_observer

    def step(self, *, starts: bool = True) -> bool:
        """Step the head if this process leads; return whether anything happened. Without `starts` no task is started.

        The lead can be lost: to whoever was quicker after the server had closed the session that holds it.
        """
        if self._head is None and not self._is_observer:
            self._is_observer = not self._may_lead()
        if self._is_observer or not self.leader_lock.try_acquire():
            self._resign()
            return False
        self._ensure_head()
        return self._head is not None and self._step_head(self._head, starts)

    def _step_head(self, head: Head, starts: bool) -> bool:
        """Step the head, but at most half of the time while anything runs: so it disturbs measurements less, and
        handles what comes in meanwhile in one go. The first step after a pause is taken at once."""
        time.sleep(max(self._next_step_at - time.monotonic(), 0.0))
        began = time.monotonic()
        happened = head.step(starts=starts)
        now = time.monotonic()
        head.statistics.stepped(now - began)
        if happened and head.executor.in_flight():
            self._next_step_at = now + min(now - began, MAX_BREATH_S)
        return happened

    def wait(self, at_most_s: float) -> None:
        """Wait until there may be something to do."""
        pause_s = self._head.pause_s if self._head else WATCH_S if self._is_observer else ELECTION_EVERY_S
        self.wakeup.wait(min(pause_s, at_most_s))

    def pause(self, pause_s: float, interrupts: Interrupts) -> None:
        """Do nothing for `pause_s`, or until a signal comes."""
        until = time.monotonic() + pause_s
        while not interrupts.came and (left_s := until - time.monotonic()) > 0:
            self.wakeup.wait(left_s)

    def detach(self) -> None:
        """Stop leading, and leave what runs to the next leader."""
        head, self._head = self._head, None
        if head is not None:
            head.detach()

    def close(self) -> None:
        """Stop leading; what runs is ended and requeued for the next leader."""
        try:
            head, self._head = self._head, None
            if head is not None:
                head.stop()
        finally:
            self.leader_lock.close()
            self._watch.close()

    def _ensure_head(self) -> None:
        """Have a head; a new one when somebody else has led since the last one's term started."""
        if (
            self._head is not None
            and self.leader_lock.times_acquired != self._times_acquired
            and not self._head.is_newest()
        ):
            self._resign()
        self._times_acquired = self.leader_lock.times_acquired
        if self._head is None:
            self._is_observer = not self._may_lead()  # asked again: while this process has the lead, nobody can win it
            if self._is_observer:
                self.leader_lock.close()
                return
            self._head = self._make_head()
            self._head.set_wakeup(self.wakeup.set)

    def _resign(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._resign_with(head)


def run_leader(
    context: Context,
    make_executor: Callable[[ProcessLock], Executor],
    interrupts: Interrupts,
    *,
    standby: bool,
    leaves_running: bool = False,
    kept_lock: int | None = None,
    statistics: Statistics | None = None,
) -> None:
    """Lead until a signal comes; then requeue what runs, or leave it to the next head.

    `make_executor` is called each time that this process becomes the leader, and the executor is closed or detached by
    the end. It logs who leads, what is unreachable and when that is over. Raises AlreadyLeading with the leader's name
    when somebody leads and `standby` does not allow to wait. `kept_lock` is what the leader's lock said when this
    process replaced its program, `make_executor` is given the means to do so again. `statistics` are kept up to date.
    """
    statistics = statistics or Statistics()
    toolchain = probe_toolchain(context.settings.cache)
    resolver = UvResolver(context.settings, toolchain)

    def make_head() -> Head:
        """Make a head; it leads over a store that can't be written at the moment, too."""
        cache = OutputCache(context.store, context.artifacts, toolchain)
        schedules = Schedules(context.database, lambda: site_toolchains.read_toolchains(context.settings))
        executor = make_executor(loop.leader_lock)
        return Head(
            *(context.store, executor, cache, resolver, LeaderKind.HEAD), schedules=schedules, statistics=statistics
        )

    loop = LeaderLoop(context, make_head, resign=Head.detach)
    interrupts.wake = loop.wakeup.set
    if kept_lock is not None:
        loop.leader_lock.adopt(kept_lock)
    try:
        if not standby:
            _expect_no_leader(context, loop)
        _step_until_interrupted(loop, context, interrupts, statistics)
        if leaves_running:
            loop.detach()
    except BaseException:
        loop.detach()  # an error in this process must not end what runs elsewhere
        raise
    finally:
        loop.close()


def _step_until_interrupted(loop: LeaderLoop, context: Context, interrupts: Interrupts, statistics: Statistics) -> None:
    outages = OutageReporter(logger.warning, logger.info)
    last_role = ""
    while not interrupts.came:
        try:
            with interrupts.expected():
                happened = loop.step()
            outages.recovered()
            statistics.set_leading(loop.is_leading)
            role = "leads" if loop.is_leading else f"stands by: {format_leader(context)} leads"
        except (DatabaseUnreachable, ClusterUnreachable, StorageUnusable) as error:
            loop.pause(outages.failed(error), interrupts)
            continue
        if role != last_role:
            logger.info("%s", role)
            last_role = role
        if not happened:
            loop.wait(WATCH_S)


def _expect_no_leader(context: Context, loop: LeaderLoop) -> None:
    began = time.monotonic()
    while not loop.leader_lock.try_acquire():
        waited_s = time.monotonic() - began
        if waited_s > REFUSE_AFTER_S and (waited_s > LOCK_DROPPED_S or not _was_killed_here(context)):
            raise AlreadyLeading(format_leader(context))
        loop.wakeup.wait(ELECTION_EVERY_S)


def _was_killed_here(context: Context) -> bool:
    """Whether the last leader was a process of this machine that died without ending its term."""
    leader = reports.leader(context.database)
    if leader is None or leader.ended_at is not None or leader.host != socket.gethostname():
        return False
    return not is_alive(leader.pid)


def format_leader(context: Context) -> str:
    """Format who leads, or led last."""
    leader = reports.leader(context.database)
    if leader is None:
        return "somebody"
    what = "the head" if leader.kind is LeaderKind.HEAD else "a command"
    return f"{what} on {leader.host} (process {leader.pid}, since {format_time(leader.started_at.isoformat())})"


def open_output_cache(context: Context) -> OutputCache:
    """Return the cache for a command that runs its job, with the toolchain that is installed here as the default.

    Raises StorageUnusable for a store that can't be written: who has just submitted wants to know.
    """
    settings = context.settings
    return OutputCache(context.store, context.writable_artifacts, probe_toolchain(settings.cache))
