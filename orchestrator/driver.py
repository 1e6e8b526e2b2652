"""Following a job to its end: by leading when nobody else does, by watching otherwise."""

import time
from collections.abc import Callable

from db import reports
from jobs.errors import NothingToDo
from jobs.state import JobState
from orchestrator.context import Context
from orchestrator.executor import Executor
from orchestrator.head import Head
from orchestrator.interrupts import Interrupts
from orchestrator.ray_executor import RayExecutor
from workers.artifacts import ArtifactStore
from workers.environment import probe_toolchain

POLL_S = 0.1  #: how long a step waits for something to happen
OPEN_STATES = frozenset({JobState.QUEUED, JobState.RUNNING})


def _head(context: Context) -> Head:
    settings = context.settings
    return Head(
        store=context.store,
        executor=RayExecutor(settings.data, settings.ray_address),
        artifacts=ArtifactStore(settings.data / "artifacts"),
        toolchain=probe_toolchain(settings.cache),
    )


class Driver:
    """Steps the head while this process leads; tries to lead while it does not."""

    def __init__(self, context: Context, make_head: Callable[[Context], Head] = _head) -> None:
        self._context, self._make_head = context, make_head
        self._leadership = context.database.leadership()
        self._head: Head | None = None

    @property
    def leads(self) -> bool:
        """Whether this process is the one that runs tasks."""
        return self._head is not None

    def step(self) -> bool:
        """One round, of `POLL_S` at most when there is nothing to do; whether anything happened.

        Leadership can be lost: to whoever was quicker after the server had cut the session that holds it.
        """
        if not self._leadership.try_lead():
            self._resign()
            time.sleep(POLL_S)
            return False
        if self._head is None:
            self._head = self._make_head(self._context)
        return self._head.step(POLL_S)

    def close(self) -> None:
        """Stop leading: what runs is ended and given back, so that the next leader finds it queued."""
        try:
            self._resign()
        finally:
            self._leadership.close()

    def _resign(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            head.hand_back()


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
    Raises Conflict, naming who leads, where somebody does and `standby` does not allow to wait for them.
    """
    leadership = context.database.leadership()
    try:
        if not leadership.try_lead() and not standby:
            raise NothingToDo("somebody else leads")
        while not interrupts.came and not leadership.try_lead():
            time.sleep(POLL_S)
        if interrupts.came:
            return
        settings = context.settings
        artifacts, toolchain = ArtifactStore(settings.data / "artifacts"), probe_toolchain(settings.cache)
        head = Head(context.store, make_executor(), artifacts, toolchain)
        say("leads")
        while not interrupts.came:
            head.step(POLL_S)
        if leaves_running:
            head.executor.leave()
        else:
            head.hand_back()
    finally:
        leadership.close()


def follow(
    context: Context,
    driver: Driver,
    job: str,
    interrupts: Interrupts,
    show: Callable[[list[reports.TaskRow]], None],
    deadline: float | None = None,
) -> JobState:
    """Step until nothing of the job is left that can run, a signal came, or `deadline` (time.monotonic) is past.

    `show` is given the job's tasks whenever something was written. Returns the state that the job is in then.
    """
    token: object = None
    state = JobState.QUEUED
    while True:
        happened = driver.step()
        fresh = context.database.change_token()
        if fresh != token or happened:
            token = fresh
            show(reports.tasks(context.database, job))
            state = reports.job(context.database, job).state
        if interrupts.came or (deadline is not None and time.monotonic() > deadline):
            return state
        if state not in OPEN_STATES and not happened:
            return state
