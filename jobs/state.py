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
    TaskState.QUEUED: frozenset(
        {TaskState.RUNNING, TaskState.CACHED, TaskState.FAILED, TaskState.PENDING, TaskState.CANCELLED}
    ),
    TaskState.RUNNING: frozenset(
        {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUEUED, TaskState.CANCELLING, TaskState.CANCELLED}
    ),
    TaskState.CANCELLING: frozenset({TaskState.CANCELLED}),
    TaskState.SUCCEEDED: frozenset({TaskState.PENDING}),  # its files were lost, and something needs them
    TaskState.CACHED: frozenset({TaskState.PENDING}),  # the same
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
    TOO_SLOW = "too_slow"  #: its gate found it slower than it was, beyond the noise
    UNSURE = "unsure"  #: its gate can't tell yet: it is measured again
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    BAD_INPUT = "bad_input"  #: the model or a file that the job names can't be used
    INPUT_LOST = "input_lost"  #: the artifact store lacks what an earlier task made, which is made again
    TOOLCHAIN = "toolchain"  #: the toolchain's programs are missing or can't be installed
    NODE_LOST = "node_lost"
    NODE_UNFIT = "node_unfit"
    OUT_OF_DISK = "out_of_disk"
    CANCELLED = "cancelled"  #: its end was asked for
    HANDED_BACK = "handed_back"  #: whoever led stopped, or the node had no room after all: nothing went wrong
    LEASE_LOST = "lease_lost"  #: whoever ran it was gone; whether it ended is not known
    INTERNAL = "internal"  #: a bug in haloctl


@dataclass(frozen=True)
class Policy:
    """What a kind of failure means for the task."""

    tries: int | None = 1  #: how many of its attempts may end so, until it fails; None: as many as it takes
    is_elsewhere_first: bool = False  #: the next attempt goes to another node where there is one


#: The kinds that blame the program end a task at once; those that blame a machine never do so the first time.
POLICIES: dict[FailureKind, Policy] = {
    FailureKind.TOOL_FAILED: Policy(),
    FailureKind.WRONG_NUMBERS: Policy(),
    FailureKind.TOO_SLOW: Policy(),
    FailureKind.UNSURE: Policy(10),  # more than a gate may ask for: it decides by itself
    FailureKind.OUT_OF_MEMORY: Policy(),
    FailureKind.TIMED_OUT: Policy(),
    FailureKind.BAD_INPUT: Policy(),
    FailureKind.INPUT_LOST: Policy(3, is_elsewhere_first=True),
    FailureKind.TOOLCHAIN: Policy(),
    FailureKind.NODE_LOST: Policy(3, is_elsewhere_first=True),
    FailureKind.NODE_UNFIT: Policy(10, is_elsewhere_first=True),  # each of them takes what is unfit out of use
    FailureKind.OUT_OF_DISK: Policy(3, is_elsewhere_first=True),
    FailureKind.CANCELLED: Policy(),
    FailureKind.HANDED_BACK: Policy(None),
    FailureKind.LEASE_LOST: Policy(5, is_elsewhere_first=True),
    FailureKind.INTERNAL: Policy(),
}

#: Kinds that say only that an attempt is gone. When its leader is gone too, that is why: it does not count.
GONE = frozenset({FailureKind.NODE_LOST, FailureKind.LEASE_LOST, FailureKind.HANDED_BACK})
#: Those of them that may be the task's own doing, when it takes down the machine of whoever leads.
LOST = GONE - {FailureKind.HANDED_BACK}
LOST_WITH_LEADER_TRIES = 5  #: how many of a task's attempts may be lost together with their leaders, until it fails


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed."""

    kind: FailureKind
    message: str  #: one line: what the matrix shows
    log_tail: str = ""


def is_retried(kind: FailureKind, times: int, times_with_leader: int = 0) -> bool:
    """Whether a task is tried again by itself when so many of its attempts that count have ended with this kind, and so
    many were lost together with their leaders."""
    tries = POLICIES[kind].tries
    return (tries is None or times < tries) and times_with_leader < LOST_WITH_LEADER_TRIES


def counts(kind: FailureKind, *, is_leader_gone: bool) -> bool:
    """Whether a failure uses up one of a task's tries."""
    return POLICIES[kind].tries is not None and not (kind in GONE and is_leader_gone)
