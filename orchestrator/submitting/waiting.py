"""Waiting for a job on the command line: progress, Ctrl-C, and the matrix at the end."""

import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from db import reports
from db.matrix import matrix
from jobs.errors import Conflict, JobFailed
from jobs.state import JobState
from orchestrator import output
from orchestrator.context import Context
from orchestrator.leading.driver import Driver
from orchestrator.showing import matrix_view, progress
from orchestrator.submitting.following import embedded, follow, settle
from orchestrator.submitting.interrupts import noticed

FAILURES = frozenset({JobState.FAILED, JobState.CANCELLED})
SETTLE_S = 30.0  #: how long a cancelled task may take to end before the command stops watching
LOOKS_S = 0.1  #: how often a question looks whether a signal came
ANSWERS = {"": True, "y": True, "yes": True, "n": False, "no": False}


class Wait(Protocol):
    """Follows a job; returns the state that it is in then."""

    def __call__(self, job: str, deadline: float | None = None) -> JobState:
        """Until the deadline, or until nothing of it is left that can run."""


class Interrupted(SystemExit):
    """A signal ended the command; the code is 128 plus its number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def wait_for(
    context: Context, job: str, *, json: bool, timeout_s: float | None, cancels_when_interrupted: bool
) -> None:
    """Follow a job, print its matrix; raises JobFailed where it ended badly.

    A signal leaves the job queued, or cancels it when that is asked for: by `cancels_when_interrupted` where nobody
    can be asked.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with follower(context, cancels_when_interrupted=cancels_when_interrupted) as wait:
        state = wait(job, deadline)
    _print_matrix(context, job, json=json)
    if state in FAILURES:
        raise JobFailed(job, state)
    if state is not JobState.SUCCEEDED:
        _say_what_is_left(context, job, state)


@contextmanager
def follower(context: Context, *, cancels_when_interrupted: bool) -> Iterator[Wait]:
    """What follows one job after another, each to its end or to a deadline (time.monotonic), and shows its progress.

    Signals are as for `wait_for`.
    """
    driver = embedded(context)
    try:
        with noticed() as interrupts:

            def wait(job: str, deadline: float | None = None) -> JobState:
                with progress.shown() as show:
                    state = follow(context, driver, job, interrupts, show, deadline, output.note)
                if interrupts.came is not None:
                    _interrupted(context, driver, job, interrupts.came, cancels_when_interrupted)
                return state

            yield wait
    finally:
        driver.close()


def _interrupted(context: Context, driver: Driver, job: str, number: signal.Signals, cancels: bool) -> None:
    if number is signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty():
        cancels = _ask_whether_to_cancel(job)
    if cancels and number is signal.SIGINT:
        _cancel(context, driver, job)
        output.note(f"job {job} is cancelled")
    else:
        driver.close()
        output.note(f"job {job} stays as it is; `haloctl wait {job}` goes on with it")
    raise Interrupted(number)


def _ask_whether_to_cancel(job: str) -> bool:
    """Ask once; another Ctrl-C means yes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _confirmed(f"\nCancel job {job}? (no leaves it for `haloctl wait`) [Y/n]: ")
    except KeyboardInterrupt:
        return True


def _confirmed(question: str) -> bool:
    """Ask until the answer is yes or no; nothing, or an end of the input, is yes.

    input() waits for the next key when a signal comes just before it begins to read; a wait that ends now and then
    does not.
    """
    while True:
        sys.stderr.write(question)
        sys.stderr.flush()
        while not select.select([sys.stdin], [], [], LOOKS_S)[0]:
            pass
        answer = sys.stdin.readline().strip().lower()
        if answer in ANSWERS:
            return ANSWERS[answer]
        question = "yes or no? [Y/n]: "


def _cancel(context: Context, driver: Driver, job: str) -> None:
    try:
        tasks = context.store.request_cancel(job)
    except Conflict:  # everything had ended meanwhile
        return
    _settle(context, driver, tasks)


def _settle(context: Context, driver: Driver, tasks: Sequence[str]) -> None:
    """Step until none of the tasks holds a process any more."""
    settle(context, driver, set(tasks), SETTLE_S, output.note)


def settle_cancelled(context: Context, tasks: Sequence[str]) -> None:
    """See cancelled tasks to their end: whoever leads does it; when nobody does, this process, or the next head."""
    driver = embedded(context)
    try:
        _settle(context, driver, tasks)
    finally:
        driver.close()


def _print_matrix(context: Context, job: str, *, json: bool) -> None:
    rows = matrix(context.database, job=job)
    if json:
        output.as_json(matrix_view.as_json(rows))
    else:
        view = matrix_view.view(rows)
        output.matrix(view.columns, view.rows, view.notes)


def _say_what_is_left(context: Context, job: str, state: JobState) -> None:
    stuck = reports.job(context.database, job).stuck
    if state is JobState.WAITING:
        output.note(f"job {job}: {stuck} tasks wait for what the cluster lacks; all that could run is done")
    else:
        output.note(f"job {job} is {state}: the time to wait is over; `haloctl wait {job}` goes on with it")
