"""Waits for a job on the command line: progress, Ctrl-C, and the matrix at the end."""

import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from db.reads import reports
from db.reads.matrix import matrix
from jobs.errors import Conflict, JobFailed
from jobs.state import JobState
from orchestrator import output
from orchestrator.context import Context
from orchestrator.follow.following import embedded, follow, settle
from orchestrator.interrupts import catch_signals
from orchestrator.leader.loop import LeaderLoop
from orchestrator.views import matrix_view, progress

FAILURES = frozenset({JobState.FAILED, JobState.CANCELLED})
SETTLE_S = 30.0  #: how long a cancelled task may take to end before the command stops watching
POLL_S = 0.1  #: how often a question checks for signals
ANSWERS = {"": True, "y": True, "yes": True, "n": False, "no": False}


class FollowJob(Protocol):
    """Follows a job, and returns its state."""

    def __call__(self, job: str, deadline: float | None = None) -> JobState:
        """Follow until the deadline, or until nothing of the job can run."""


class Interrupted(SystemExit):
    """A signal ended the command; the code is 128 plus its number, as in shells."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def wait_for(
    context: Context, job: str, *, json: bool, timeout_s: float | None, cancels_when_interrupted: bool
) -> None:
    """Follow a job and print its matrix. Raises JobFailed if it did not succeed.

    On a signal the user is asked whether to cancel the job; without a terminal `cancels_when_interrupted` decides.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with follower(context, cancels_when_interrupted=cancels_when_interrupted) as wait:
        state = wait(job, deadline)
    _print_matrix(context, job, json=json)
    if state in FAILURES:
        raise JobFailed(job, state)
    if state is not JobState.SUCCEEDED:
        _say_what_is_left(context, job, state)


def wait_for_server(context: Context, job: str) -> None:
    """Follow a job that ends only when it is cancelled, or fails: then JobFailed is raised."""
    with follower(context, cancels_when_interrupted=True) as wait:
        state = wait(job)
    if state is JobState.FAILED:
        raise JobFailed(job, state)
    if state is JobState.WAITING:
        _say_what_is_left(context, job, state)


@contextmanager
def follower(context: Context, *, cancels_when_interrupted: bool) -> Iterator[FollowJob]:
    """Yield a function that follows one job after another, each to a deadline (time.monotonic), and shows its progress.

    Signals are handled as by `wait_for`.
    """
    loop = embedded(context)
    try:
        with catch_signals() as interrupts:

            def wait(job: str, deadline: float | None = None) -> JobState:
                with progress.live_progress() as show:
                    state = follow(context, loop, job, interrupts, show, deadline, output.print_message)
                if interrupts.came is not None:
                    _interrupted(context, loop, job, interrupts.came, cancels_when_interrupted)
                return state

            yield wait
    finally:
        loop.close()


def _interrupted(context: Context, loop: LeaderLoop, job: str, number: signal.Signals, cancels: bool) -> None:
    if number is signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty():
        cancels = _ask_whether_to_cancel(job)
    if cancels and number is signal.SIGINT:
        _cancel(context, loop, job)
        output.print_message(f"job {job} is cancelled")
    else:
        loop.close()
        output.print_message(f"job {job} stays as it is; `haloctl wait {job}` goes on with it")
    raise Interrupted(number)


def _ask_whether_to_cancel(job: str) -> bool:
    """Ask once; another Ctrl-C means yes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _confirmed(f"\nCancel job {job}? (no leaves it for `haloctl wait`) [Y/n]: ")
    except KeyboardInterrupt:
        return True


def _confirmed(question: str) -> bool:
    """Ask until the answer is yes or no; an empty line or the end of the input means yes.

    input() waits for the next key when a signal comes just before it begins to read; a wait with a timeout does not.
    """
    while True:
        output.print_prompt(question)
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            pass
        answer = sys.stdin.readline().strip().lower()
        if answer in ANSWERS:
            return ANSWERS[answer]
        question = "yes or no? [Y/n]: "


def _cancel(context: Context, loop: LeaderLoop, job: str) -> None:
    try:
        tasks = context.store.request_cancel(job)
    except Conflict:  # everything had ended meanwhile
        return
    _settle(context, loop, tasks)


def _settle(context: Context, loop: LeaderLoop, tasks: Sequence[str]) -> None:
    """Step until none of the tasks holds a process any more."""
    settle(context, loop, set(tasks), SETTLE_S, output.print_message)


def settle_cancelled(context: Context, tasks: Sequence[str]) -> None:
    """Wait until cancelled tasks have ended: the leader ends them, or this process if nobody leads."""
    loop = embedded(context)
    try:
        _settle(context, loop, tasks)
    finally:
        loop.close()


def _print_matrix(context: Context, job: str, *, json: bool) -> None:
    rows = matrix(context.database, job=job)
    if json:
        output.print_json(matrix_view.to_json(rows))
    else:
        output.print_table(matrix_view.to_table(rows))


def _say_what_is_left(context: Context, job: str, state: JobState) -> None:
    count = reports.job(context.database, job).unschedulable
    if state is JobState.WAITING:
        output.print_message(f"job {job}: {count} tasks wait for resources that the cluster lacks; the others are done")
    else:
        output.print_message(f"job {job} is {state}: the time to wait is over; `haloctl wait {job}` goes on with it")
