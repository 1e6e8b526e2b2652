"""The decision what becomes of an attempt that ended and of its task, from rows that were read before."""

from collections import Counter
from dataclasses import dataclass, field, replace

from db.writes.transitions import LockedTask
from jobs.state import LOST, LOST_WITH_LEADER_TRIES, WITHOUT_RESULTS, FailureKind, TaskState, counts, is_retried
from jobs.task import TaskResult


@dataclass(frozen=True)
class FailureHistory:
    """How often the attempts of a task failed in each way since it was submitted or last retried."""

    counted: Counter[FailureKind] = field(default_factory=Counter)  #: failures that used up one of its tries
    uncounted: Counter[FailureKind] = field(default_factory=Counter)


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ends, and the state that its task gets."""

    task: LockedTask
    result: TaskResult
    state: TaskState
    is_counted: bool  #: its failure uses up one of the task's tries

    @property
    def has_results(self) -> bool:
        """Whether what the attempt measured and made is the task's; of a lost or cancelled one it is nobody's."""
        failure = self.result.failure
        return self.state is not TaskState.CANCELLED and (failure is None or failure.kind not in WITHOUT_RESULTS)


def decide(task: LockedTask, result: TaskResult, history: FailureHistory, *, is_leader_gone: bool) -> AttemptEnd:
    """Decide how the current attempt of a task ends; `is_leader_gone` if the leader that started it no longer leads."""
    kind = result.failure.kind if result.failure else None
    is_counted = kind is not None and counts(kind, is_leader_gone=is_leader_gone)
    times = history.counted[kind] + 1 if kind and is_counted else 0
    lost_with_leader = 0
    if kind in LOST and not is_counted:
        lost_with_leader = sum(history.uncounted[lost] for lost in LOST) + 1
    state = next_state(task.state, kind, times, lost_with_leader)
    return AttemptEnd(task, _blamed(result, lost_with_leader), state, is_counted)


def next_state(state: TaskState, kind: FailureKind | None, times: int, lost_with_leader: int) -> TaskState:
    """Return the state of a task whose attempt ended with a failure of this kind, for the `times`th time that counts.

    `lost_with_leader` of its attempts were lost together with their leaders, this one included.
    """
    if state is TaskState.CANCELLING or kind is FailureKind.CANCELLED:
        return TaskState.CANCELLED
    if kind is None:
        return TaskState.SUCCEEDED
    return TaskState.QUEUED if is_retried(kind, times, lost_with_leader) else TaskState.FAILED


def _blamed(result: TaskResult, lost_with_leader: int) -> TaskResult:
    """Name the task as a suspect in its failure when too many of its attempts were lost with their leaders."""
    if result.failure is None or lost_with_leader < LOST_WITH_LEADER_TRIES:
        return result
    message = (
        f"{result.failure.message}; {lost_with_leader} of its attempts were lost together with their leader: "
        "the task may be what takes that machine down"
    )
    return replace(result, failure=replace(result.failure, message=message))
