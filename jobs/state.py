"""Where tasks and jobs are in their lives, how they may move, and how attempts fail."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class TaskState(StrEnum):
    """Where a task is in its life."""

    PENDING = "pending"  #: something it needs is not done yet
    QUEUED = "queued"  #: may run as soon as a node has room; `waits_for` says for what
    RUNNING = "running"  #: an attempt is under way
    CANCELLING = "cancelling"  #: its attempt is being ended
    SUCCEEDED = "succeeded"
    CACHED = "cached"  #: an earlier task's outputs were taken over
    FAILED = "failed"
    BLOCKED = "blocked"  #: something it needs failed or was cancelled
    CANCELLED = "cancelled"


#: The only moves there are; every write is guarded by them.
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.PENDING: frozenset({TaskState.QUEUED, TaskState.BLOCKED, TaskState.CANCELLED}),
    TaskState.QUEUED: frozenset({TaskState.RUNNING, TaskState.CACHED, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.RUNNING: frozenset(
        {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUEUED, TaskState.CANCELLING, TaskState.CANCELLED}
    ),
    TaskState.CANCELLING: frozenset({TaskState.CANCELLED}),
    TaskState.SUCCEEDED: frozenset(),
    TaskState.CACHED: frozenset(),
    TaskState.FAILED: frozenset({TaskState.PENDING}),
    TaskState.BLOCKED: frozenset({TaskState.PENDING}),
    TaskState.CANCELLED: frozenset({TaskState.PENDING}),
}

DONE = frozenset({TaskState.SUCCEEDED, TaskState.CACHED})
RETRYABLE = frozenset({TaskState.FAILED, TaskState.BLOCKED, TaskState.CANCELLED})
ENDED = DONE | RETRYABLE
ACTIVE = frozenset({TaskState.RUNNING, TaskState.CANCELLING})
OPEN = frozenset({TaskState.PENDING, TaskState.QUEUED})


class JobState(StrEnum):
    """What a job's tasks add up to; computed, never stored."""

    QUEUED = "queued"  #: something could run, and nothing does
    RUNNING = "running"
    WAITING = "waiting"  #: all that is left needs what the cluster does not have
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


def job_state(tasks: Collection[tuple[TaskState, bool]]) -> JobState:
    """Add up a job's tasks, each as (state, whether nothing that runs now could ever let it run)."""
    states = {state for state, _ in tasks}
    if states & ACTIVE:
        return JobState.RUNNING
    if any(state in OPEN and not is_stuck for state, is_stuck in tasks):
        return JobState.QUEUED
    for bad, ended_as in ((TaskState.FAILED, JobState.FAILED), (TaskState.CANCELLED, JobState.CANCELLED)):
        if bad in states:
            return ended_as
    return JobState.SUCCEEDED if states <= DONE else JobState.WAITING


class FailureKind(StrEnum):
    """Whom a failure blames."""

    TOOL_FAILED = "tool_failed"  #: a stage's program or tool ended with an error
    WRONG_NUMBERS = "wrong_numbers"  #: it ran, and what it computed is wrong
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    BAD_INPUT = "bad_input"  #: the model or a file that the job names can't be used
    TOOLCHAIN = "toolchain"  #: the toolchain's programs are missing or can't be installed
    NODE_LOST = "node_lost"
    NODE_UNFIT = "node_unfit"
    OUT_OF_DISK = "out_of_disk"
    CANCELLED = "cancelled"  #: its end was asked for
    HANDED_BACK = "handed_back"  #: whoever led stopped, or the node had no room after all: nothing went wrong
    LEASE_LOST = "lease_lost"  #: whoever ran it was gone; whether it ended is not known
    INTERNAL = "internal"  #: a bug in haloctl


#: Failures that blame the machine, not the model: tried again, at most so many times in all.
RETRIED_KINDS: dict[FailureKind, int] = {
    FailureKind.NODE_LOST: 3,
    FailureKind.NODE_UNFIT: 3,
    FailureKind.OUT_OF_DISK: 2,
    FailureKind.LEASE_LOST: 5,
}


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed."""

    kind: FailureKind
    message: str  #: one line: what the matrix shows
    log_tail: str = ""


def is_retried(failure: Failure, attempts: int) -> bool:
    """Whether a task is tried again by itself after this failure of its attempt number `attempts`."""
    return failure.kind is FailureKind.HANDED_BACK or attempts < RETRIED_KINDS.get(failure.kind, 0)
