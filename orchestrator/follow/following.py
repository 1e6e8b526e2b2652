"""Follows a job to its end: as its leader when nobody leads and no head ever did, as an observer otherwise."""

import time
from collections.abc import Callable, Collection

from db.reads import reports
from db.schema.ids import job_of
from jobs.errors import DatabaseUnreachable, StorageUnusable
from jobs.state import ACTIVE, JobState
from orchestrator.context import Context
from orchestrator.interrupts import Interrupts
from orchestrator.leader.head import Head
from orchestrator.leader.loop import LeaderLoop, format_leader, open_output_cache
from orchestrator.leader.outages import OutageReporter
from orchestrator.toolchains.resolving import UvResolver

OPEN_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})
PATIENCE_S = 5.0  #: for an unreachable database, until a command gives up
WATCH_S = 1.0
MAX_SHOW_SHARE = 0.05  #: of the time that goes into showing
WITHOUT_HEAD = "nodes end what it left running within seconds, and the next head records that"

Say = Callable[[str], None]
Show = Callable[[list[reports.TaskRow]], None]


def embedded(context: Context) -> LeaderLoop:
    """Return a loop that runs tasks on a local Ray, unless a head has ever led."""

    def make_head() -> Head:
        from orchestrator.ray_executor import RayExecutor

        cache = open_output_cache(context)
        resolver = UvResolver(context.settings, cache.toolchain)
        executor = RayExecutor(context.settings.data, artifacts=context.settings.artifacts)
        return Head(context.store, executor, cache, resolver)

    return LeaderLoop(context, make_head, may_lead=lambda: not reports.is_led_by_heads(context.database))


class LeaderAbsence:
    """Reports once that no head leads, with the consequence."""

    def __init__(self, context: Context, loop: LeaderLoop, say: Say, consequence: str) -> None:
        self._context, self._loop, self._say, self._consequence = context, loop, say, consequence
        self._next_at = 0.0
        self.is_reported = False

    def check(self) -> None:
        """Check now and then whether a head leads, if this process only observes."""
        if self.is_reported or not self._loop.is_observer or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + WATCH_S
        if not self._loop.leader_lock.is_held():
            self._say(f"no head leads now; the last one was {format_leader(self._context)}; {self._consequence}")
            self.is_reported = True


class JobView:
    """A job as it was shown last."""

    def __init__(self, context: Context, job: str, show: Show) -> None:
        self._database, self._job, self._show = context.database, job, show
        self._token: object = None
        self._next_at = 0.0
        self.state = JobState.QUEUED

    @property
    def waits_s(self) -> float:
        """Seconds until the job may be shown again."""
        return max(self._next_at - time.monotonic(), 0.0)

    def refresh(self) -> bool:
        """Show the job's tasks if anything was written; return whether the view is up to date."""
        began = time.monotonic()
        token = self._database.change_token()
        if token == self._token:
            return True
        if began < self._next_at and not reports.is_over(self._database, self._job):
            return False
        self._show(reports.tasks(self._database, self._job))
        self.state = reports.job(self._database, self._job).state
        self._token = token
        now = time.monotonic()
        self._next_at = now + (now - began) / MAX_SHOW_SHARE
        return True


def follow(
    context: Context,
    loop: LeaderLoop,
    job: str,
    interrupts: Interrupts,
    show: Show,
    deadline: float | None = None,
    say: Say = lambda text: None,
) -> JobState:
    """Step until nothing of the job can run, a signal comes, or `deadline` (time.monotonic) passes; return its state.

    `show` gets the job's tasks when something was written, `say` messages for people.
    """
    interrupts.wake = loop.wakeup.set
    view, outages, storage = JobView(context, job, show), OutageReporter(say, say, PATIENCE_S), OutageReporter(say, say)
    absence = LeaderAbsence(context, loop, say, "waiting")
    while True:
        try:
            happened = loop.step()
            is_fresh = view.refresh()
            absence.check()
            outages.recovered()
            storage.recovered()
        except (DatabaseUnreachable, StorageUnusable) as error:
            outage = storage if isinstance(error, StorageUnusable) else outages
            loop.pause(outage.failed(error), interrupts)
            happened = is_fresh = False
        left_s = WATCH_S if deadline is None else deadline - time.monotonic()
        if interrupts.came or left_s < 0:
            return view.state
        if is_fresh and not happened and view.state not in OPEN_STATES:
            return view.state
        if not happened:
            loop.wait(left_s if is_fresh else min(left_s, view.waits_s))


def settle(context: Context, loop: LeaderLoop, tasks: Collection[str], within_s: float, say: Say) -> None:
    """Wait until no process of some cancelled tasks of one job is left, and start nothing meanwhile.

    `say` reports when that is left to others: no head leads that could end them, or it takes longer than `within_s`.
    """
    absence, deadline = LeaderAbsence(context, loop, say, WITHOUT_HEAD), time.monotonic() + within_s
    token: object = None
    while True:
        happened = loop.step(starts=False)
        fresh = context.database.change_token()
        if fresh != token and not _are_active(context, tasks):
            return
        token = fresh
        absence.check()
        left_s = deadline - time.monotonic()
        if absence.is_reported:
            return
        if left_s < 0:
            say("some tasks have not ended yet; the leader goes on ending them")
            return
        if not happened:
            loop.wait(left_s)


def _are_active(context: Context, tasks: Collection[str]) -> bool:
    jobs = {job_of(task) for task in tasks}
    rows = [row for job in jobs for row in reports.tasks(context.database, job)]
    return any(row.id in tasks and row.state in ACTIVE for row in rows)
