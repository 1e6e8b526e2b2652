"""The states of tasks and jobs, the transitions between them, and the kinds of failures."""

import traceback
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class TaskState(StrEnum):
    """The state of a task."""

    PENDING = "pending"  #: a task that it needs is not done yet
    QUEUED = "queued"  #: ready to run when a node has room; `waits_for` names what is missing
    RUNNING = "running"  #: one of its attempts runs
    CANCELLING = "cancelling"  #: its attempt is being stopped
    SUCCEEDED = "succeeded"
    CACHED = "cached"  #: it reuses the outputs of an earlier task
    FAILED = "failed"
    BLOCKED = "blocked"  #: a task that it needs failed or was cancelled
    CANCELLED = "cancelled"


#: All allowed transitions; every write of a state is guarded by them.
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.PENDING: frozenset({TaskState.QUEUED, TaskState.FAILED, TaskState.BLOCKED, TaskState.CANCELLED}),
    TaskState.QUEUED: frozenset(
        {TaskState.RUNNING, TaskState.CACHED, TaskState.FAILED, TaskState.PENDING, TaskState.CANCELLED}
    ),
    TaskState.RUNNING: frozenset(
        {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.QUEUED, TaskState.CANCELLING, TaskState.CANCELLED}
    ),
    TaskState.CANCELLING: frozenset({TaskState.CANCELLED}),
    TaskState.SUCCEEDED: frozenset({TaskState.PENDING}),  # its files were lost and another task needs them
    TaskState.CACHED: frozenset({TaskState.PENDING}),  # for the same reason
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
    """The state of a job, computed from its tasks and never stored."""

    QUEUED = "queued"  #: tasks are ready to run and none runs
    RUNNING = "running"
    WAITING = "waiting"  #: all remaining tasks need something that the cluster does not have
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


def job_state(tasks: Collection[tuple[TaskState, bool]]) -> JobState:
    """Return the state of a job, given the state of each of its tasks and whether the task is unschedulable."""
    states = {state for state, _ in tasks}
    if states & ACTIVE:
        return JobState.RUNNING
    if any(state in OPEN and not is_unschedulable for state, is_unschedulable in tasks):
        return JobState.QUEUED
    for bad, ended_as in ((TaskState.FAILED, JobState.FAILED), (TaskState.CANCELLED, JobState.CANCELLED)):
        if bad in states:
            return ended_as
    return JobState.SUCCEEDED if states <= DONE else JobState.WAITING


class FailureKind(StrEnum):
    """The cause of a failure, which decides whether the task is tried again."""

    TOOL_FAILED = "tool_failed"  #: a program or tool exited with an error
    WRONG_NUMBERS = "wrong_numbers"  #: it ran and computed wrong results
    TOO_SLOW = "too_slow"  #: its gate found it slower than the baseline, beyond the noise
    KERNELS_WORSE = "kernels_worse"  #: its gate found more spills, traffic or dispatches than the baseline has
    INCONCLUSIVE = "inconclusive"  #: its gate needs another measurement to decide
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    BAD_INPUT = "bad_input"  #: the model or a file of the job can't be used
    INPUT_CHANGED = "input_changed"  #: the model or a file of the job is not what it was when the job was submitted
    INPUT_LOST = "input_lost"  #: the artifact store lost an input, which its task makes again
    TOOLCHAIN = "toolchain"  #: programs of the toolchain are missing or can't be installed
    NODE_LOST = "node_lost"
    NODE_UNFIT = "node_unfit"
    OUT_OF_DISK = "out_of_disk"
    STORE_UNUSABLE = "store_unusable"  #: the artifact store can't be reached, written, or has no room
    CANCELLED = "cancelled"  #: a user cancelled it
    REQUEUED = "requeued"  #: the leader stopped or the node had no room after all; nothing went wrong
    LEASE_LOST = "lease_lost"  #: its agent was gone, so its end is unknown
    INTERNAL = "internal"  #: a bug in haloctl


@dataclass(frozen=True)
class Policy:
    """The retry policy of a kind of failure."""

    tries: int | None = 1  #: attempts that may fail so until the task fails; None: without limit
    is_elsewhere_first: bool = False  #: the next attempt prefers another node
    keeps_results: bool = False  #: what the attempt measured and made until then is the program's, and is stored


#: Kinds that blame the program fail the task at once; kinds that blame a machine are tried again, and what a lost or
#: cancelled attempt measured is no result.
POLICIES: dict[FailureKind, Policy] = {
    FailureKind.TOOL_FAILED: Policy(keeps_results=True),
    FailureKind.WRONG_NUMBERS: Policy(keeps_results=True),
    FailureKind.TOO_SLOW: Policy(keeps_results=True),
    FailureKind.KERNELS_WORSE: Policy(keeps_results=True),
    FailureKind.INCONCLUSIVE: Policy(10, keeps_results=True),  # more than a gate can use: it decides on its own
    FailureKind.OUT_OF_MEMORY: Policy(keeps_results=True),
    FailureKind.TIMED_OUT: Policy(keeps_results=True),
    FailureKind.BAD_INPUT: Policy(),
    FailureKind.INPUT_CHANGED: Policy(),
    FailureKind.INPUT_LOST: Policy(3, is_elsewhere_first=True),
    FailureKind.TOOLCHAIN: Policy(),
    FailureKind.NODE_LOST: Policy(3, is_elsewhere_first=True),
    FailureKind.NODE_UNFIT: Policy(10, is_elsewhere_first=True),  # each takes an unfit node or device out of use
    FailureKind.OUT_OF_DISK: Policy(3, is_elsewhere_first=True),
    FailureKind.STORE_UNUSABLE: Policy(None),  # nobody's failure; nodes take nothing until their store is back
    FailureKind.CANCELLED: Policy(),
    FailureKind.REQUEUED: Policy(None),
    FailureKind.LEASE_LOST: Policy(5, is_elsewhere_first=True),
    FailureKind.INTERNAL: Policy(),
}

#: Kinds of failures after which nothing but an attempt's log is stored.
WITHOUT_RESULTS = frozenset(kind for kind, policy in POLICIES.items() if not policy.keeps_results)

#: Kinds that blame a machine, its driver, its disk or the store: the program has no part in them.
OF_MACHINES = frozenset(kind for kind, policy in POLICIES.items() if policy.tries != 1) - {FailureKind.INCONCLUSIVE}

#: Kinds of attempts that disappeared. They do not count if the leader disappeared too, which then is the cause.
GONE = frozenset({FailureKind.NODE_LOST, FailureKind.LEASE_LOST, FailureKind.REQUEUED})
#: Those that the task itself can cause, by taking down the leader's machine.
LOST = GONE - {FailureKind.REQUEUED}
LOST_WITH_LEADER_TRIES = 5  #: attempts that may be lost together with their leaders until the task fails


@dataclass(frozen=True)
class Failure:
    """The failure of an attempt."""

    kind: FailureKind
    message: str  #: one line, which the matrix shows
    log_tail: str = ""


def internal_failure(error: BaseException) -> Failure:
    """Return the failure of a task for which haloctl's own code raised, with the traceback as its log."""
    lines = str(error).strip().splitlines() or [""]
    message = f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
    return Failure(FailureKind.INTERNAL, message, "".join(traceback.format_exception(error)))


def is_retried(kind: FailureKind, times: int, times_with_leader: int = 0) -> bool:
    """Return whether a task is tried again.

    `times` is the number of its attempts that count and failed with this kind, `times_with_leader` the number that
    were lost together with their leaders.
    """
    tries = POLICIES[kind].tries
    return (tries is None or times < tries) and times_with_leader < LOST_WITH_LEADER_TRIES


def counts(kind: FailureKind, *, is_leader_gone: bool) -> bool:
    """Return whether a failure uses up one of a task's tries."""
    return POLICIES[kind].tries is not None and not (kind in GONE and is_leader_gone)
