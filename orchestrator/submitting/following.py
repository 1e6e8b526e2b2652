"""Following a job to its end: by leading when nobody else does and no head ever did, by watching otherwise."""

import time
from collections.abc import Callable, Collection

from db import reports
from db.ids import job_of
from jobs.errors import DatabaseUnreachable, StorageUnusable
from jobs.state import ACTIVE, JobState
from orchestrator.context import Context
from orchestrator.head import Head
from orchestrator.leading.driver import Driver, leader_in_words, reuse_of
from orchestrator.leading.outages import Outages
from orchestrator.submitting.interrupts import Interrupts
from orchestrator.toolchains.resolving import UvResolver

OPEN_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})
PATIENCE_S = 5.0  #: how long a database may be away until a command gives up
WATCH_S = 1.0
SHARE_OF_LOOKING = 0.05  #: of the time, at most, goes into showing
WITHOUT_HEAD = "nodes end what it left running within seconds, and the next one will tell so"

Say = Callable[[str], None]
Show = Callable[[list[reports.TaskRow]], None]


def embedded(context: Context) -> Driver:
    """A driver that runs tasks on a Ray of its own, unless heads lead here."""

    def make_head() -> Head:
        from orchestrator.ray_executor import RayExecutor

        reuse = reuse_of(context)
        resolver = UvResolver(context.settings, reuse.toolchain)
        executor = RayExecutor(context.settings.data, artifacts=context.settings.artifacts)
        return Head(context.store, executor, reuse, resolver)

    return Driver(context, make_head, may_lead=lambda: not reports.is_led_by_heads(context.database))


class Absence:
    """Says once that no head leads, and what comes of that."""

    def __init__(self, context: Context, driver: Driver, say: Say, consequence: str) -> None:
        self._context, self._driver, self._say, self._consequence = context, driver, say, consequence
        self._look_at = 0.0
        self.is_said = False

    def look(self) -> None:
        """See whether a head leads, now and then, where it takes one."""
        if self.is_said or not self._driver.only_watches or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + WATCH_S
        if not self._driver.leadership.is_anybodys():
            self._say(f"no head leads now; the last one was {leader_in_words(self._context)}; {self._consequence}")
            self.is_said = True


class View:
    """A job as it was last shown."""

    def __init__(self, context: Context, job: str, show: Show) -> None:
        self._database, self._job, self._show = context.database, job, show
        self._token: object = None
        self._look_at = 0.0
        self.state = JobState.QUEUED

    @property
    def waits_s(self) -> float:
        """How long it is until it may be looked at again."""
        return max(self._look_at - time.monotonic(), 0.0)

    def look(self) -> bool:
        """Show the job's tasks if anything was written; whether what is shown is how it is."""
        began = time.monotonic()
        token = self._database.change_token()
        if token == self._token:
            return True
        if began < self._look_at and not reports.is_over(self._database, self._job):
            return False
        self._show(reports.tasks(self._database, self._job))
        self.state = reports.job(self._database, self._job).state
        self._token = token
        now = time.monotonic()
        self._look_at = now + (now - began) / SHARE_OF_LOOKING
        return True


def follow(
    context: Context,
    driver: Driver,
    job: str,
    interrupts: Interrupts,
    show: Show,
    deadline: float | None = None,
    say: Say = lambda text: None,
) -> JobState:
    """Step until nothing of the job is left that can run, a signal came, or `deadline` (time.monotonic) is past.

    `show` is given the job's tasks when something was written; `say` what else people should know. Returns the state
    that the job is in then.
    """
    interrupts.wake = driver.bell.ring
    view, outages, storage = View(context, job, show), Outages(say, PATIENCE_S), Outages(say)
    absence = Absence(context, driver, say, "waiting")
    while True:
        try:
            happened = driver.step()
            is_fresh = view.look()
            absence.look()
            outages.end()
            storage.end()
        except (DatabaseUnreachable, StorageUnusable) as error:
            outage = storage if isinstance(error, StorageUnusable) else outages
            driver.rest(outage.note(error), interrupts)
            happened = is_fresh = False
        left_s = WATCH_S if deadline is None else deadline - time.monotonic()
        if interrupts.came or left_s < 0:
            return view.state
        if is_fresh and not happened and view.state not in OPEN_STATES:
            return view.state
        if not happened:
            driver.wait(left_s if is_fresh else min(left_s, view.waits_s))


def settle(context: Context, driver: Driver, tasks: Collection[str], within_s: float, say: Say) -> None:
    """Return when none of some cancelled tasks of one job holds a process any more, and start nothing meanwhile.

    Says so where that is left to others: there is no head that could end them now, or it takes longer than `within_s`.
    """
    absence, deadline = Absence(context, driver, say, WITHOUT_HEAD), time.monotonic() + within_s
    token: object = None
    while True:
        happened = driver.step(starts=False)
        fresh = context.database.change_token()
        if fresh != token and not _are_active(context, tasks):
            return
        token = fresh
        absence.look()
        left_s = deadline - time.monotonic()
        if absence.is_said:
            return
        if left_s < 0:
            say("some of it has not ended yet; whoever leads goes on ending it")
            return
        if not happened:
            driver.wait(left_s)


def _are_active(context: Context, tasks: Collection[str]) -> bool:
    jobs = {job_of(task) for task in tasks}
    rows = [row for job in jobs for row in reports.tasks(context.database, job)]
    return any(row.id in tasks and row.state in ACTIVE for row in rows)
