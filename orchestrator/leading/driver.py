"""Leading while nobody else does: a daemon until it is told to stop, a command until its job has ended."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from db import reports
from db.store import LeaderKind
from jobs.errors import AlreadyLed, ClusterUnreachable, DatabaseUnreachable, StorageUnusable
from orchestrator.context import Context
from orchestrator.executor import Executor
from orchestrator.head import Head
from orchestrator.leading.bell import Bell
from orchestrator.leading.collecting import keep_what_is_there
from orchestrator.leading.outages import Outages
from orchestrator.leading.reuse import Reuse
from orchestrator.leading.schedules import Schedules
from orchestrator.showing.rows import when
from orchestrator.submitting.interrupts import Interrupts
from orchestrator.toolchains import site_toolchains
from orchestrator.toolchains.resolving import UvResolver
from workers.device_users import is_alive
from workers.environment import probe_toolchain

TRY_AGAIN_S = 0.1  #: how long after one try to lead the next one comes: nothing tells that a leader is gone
WATCH_S = 1.0
BREATH_S = 0.05
REFUSE_AFTER_S = 1.0  #: somebody who asks whether anybody leads may be in the way for a moment
DROPPED_AFTER_S = 10.0  #: what a busy server may take to drop the lock of a leader that was killed


class Driver:
    """Steps the head while this process leads; tries to lead while it does not. Each wait ends when the bell rings."""

    def __init__(
        self,
        context: Context,
        make_head: Callable[[], Head],
        *,
        resign: Callable[[Head], None] = Head.hand_back,
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        """`resign` is done to a head that leads no more; `may_lead` is asked before a new one begins to."""
        self.bell = Bell()
        self.leadership = context.database.leadership()
        self._make_head, self._resign_with, self._may_lead = make_head, resign, may_lead
        self._head: Head | None = None
        self._times_won = 0
        self._only_watches = False
        self._next_at = 0.0
        self._watch = ExitStack()
        self._watch.enter_context(context.database.watch(self.bell.ring))

    @property
    def leads(self) -> bool:
        """Whether this process is the one that runs tasks."""
        return self._head is not None

    @property
    def only_watches(self) -> bool:
        """Whether it is left to others to lead."""
        return self._only_watches

    def step(self, *, starts: bool = True) -> bool:
        """One step of the head where this process leads; whether anything happened. Without `starts` nothing is
        started.

        Leadership can be lost: to whoever was quicker after the server had cut the session that holds it.
        """
        if self._head is None and not self._only_watches:
            self._only_watches = not self._may_lead()
        if self._only_watches or not self.leadership.try_lead():
            self._resign()
            return False
        self._lead()
        return self._head is not None and self._step(self._head, starts)

    def _step(self, head: Head, starts: bool) -> bool:
        """While anything runs, let the head work for half of the time at most: so it disturbs what is timed less, and
        what comes in meanwhile is done in one go. The first step after a pause is taken at once."""
        time.sleep(max(self._next_at - time.monotonic(), 0.0))
        began = time.monotonic()
        happened = head.step(starts=starts)
        if happened and head.executor.running():
            now = time.monotonic()
            self._next_at = now + min(now - began, BREATH_S)
        return happened

    def wait(self, at_most_s: float) -> None:
        """Wait until there may be something to do."""
        pause_s = self._head.pause_s if self._head else WATCH_S if self._only_watches else TRY_AGAIN_S
        self.bell.wait(min(pause_s, at_most_s))

    def rest(self, pause_s: float, interrupts: Interrupts) -> None:
        """Do nothing for a while, unless a signal comes."""
        until = time.monotonic() + pause_s
        while not interrupts.came and (left_s := until - time.monotonic()) > 0:
            self.bell.wait(left_s)

    def leave(self) -> None:
        """Stop leading, and leave what runs to the next leader."""
        head, self._head = self._head, None
        if head is not None:
            head.leave()

    def close(self) -> None:
        """Stop leading: what runs is ended and given back, so that the next leader finds it queued."""
        try:
            head, self._head = self._head, None
            if head is not None:
                head.hand_back()
        finally:
            self.leadership.close()
            self._watch.close()

    def _lead(self) -> None:
        """Have a head; a new one where somebody else led since the last one began."""
        if self._head is not None and self.leadership.times_won != self._times_won and not self._head.is_newest():
            self._resign()
        self._times_won = self.leadership.times_won
        if self._head is None:
            self._only_watches = not self._may_lead()  # for as long as it has the lead, nobody else begins to
            if self._only_watches:
                self.leadership.close()
                return
            self._head = self._make_head()
            keep_what_is_there()
            self._head.wakes(self.bell.ring)

    def _resign(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._resign_with(head)


def lead_forever(
    context: Context,
    make_executor: Callable[[], Executor],
    interrupts: Interrupts,
    say: Callable[[str], None],
    *,
    standby: bool,
    leaves_running: bool = False,
) -> None:
    """Lead until a signal came: it returns when what runs was handed back, or left to the next head.

    `make_executor` is called each time that this process becomes the leader; the executor is closed or left by the
    end. `say` is told in one line what people want to know: who leads, what can't be reached, and that it is over.
    Raises AlreadyLed, naming who leads, where somebody does and `standby` does not allow to wait for them.
    """
    reuse = reuse_of(context)
    resolver = UvResolver(context.settings, reuse.toolchain)

    def make_head() -> Head:
        nightly = Schedules(context.database, lambda: site_toolchains.rows(context.settings), say)
        return Head(context.store, make_executor(), reuse, resolver, LeaderKind.HEAD, schedules=nightly)

    driver = Driver(context, make_head, resign=Head.leave)
    interrupts.wake = driver.bell.ring
    try:
        if not standby:
            _expect_nobody_leads(context, driver)
        _step_until_told(driver, context, interrupts, say)
        if leaves_running:
            driver.leave()
    except BaseException:
        driver.leave()  # whatever went wrong here, what runs elsewhere need not end for it
        raise
    finally:
        driver.close()


def _step_until_told(driver: Driver, context: Context, interrupts: Interrupts, say: Callable[[str], None]) -> None:
    outages = Outages(say)
    said = ""
    while not interrupts.came:
        try:
            happened = driver.step()
            outages.end()
            role = "leads" if driver.leads else f"stands by: {leader_in_words(context)} leads"
        except (DatabaseUnreachable, ClusterUnreachable, StorageUnusable) as error:
            driver.rest(outages.note(error), interrupts)
            continue
        if role != said:
            say(role)
            said = role
        if not happened:
            driver.wait(WATCH_S)


def _expect_nobody_leads(context: Context, driver: Driver) -> None:
    began = time.monotonic()
    while not driver.leadership.try_lead():
        waited_s = time.monotonic() - began
        if waited_s > REFUSE_AFTER_S and (waited_s > DROPPED_AFTER_S or not _was_killed_here(context)):
            raise AlreadyLed(leader_in_words(context))
        driver.bell.wait(TRY_AGAIN_S)


def _was_killed_here(context: Context) -> bool:
    """Whether who led last was a process of this machine that is dead, and never said that it stopped."""
    leader = reports.leader(context.database)
    if leader is None or leader.ended_at is not None or leader.host != socket.gethostname():
        return False
    return not is_alive(leader.pid)


def leader_in_words(context: Context) -> str:
    """Who leads, or led last."""
    leader = reports.leader(context.database)
    if leader is None:
        return "somebody"
    what = "the head" if leader.kind is LeaderKind.HEAD else "a command"
    return f"{what} on {leader.host} (process {leader.pid}, since {when(leader.began_at.isoformat())})"


def reuse_of(context: Context) -> Reuse:
    """What a head of this process takes over from, and what it runs tasks under."""
    settings = context.settings
    return Reuse(context.store, context.artifacts, probe_toolchain(settings.cache))
