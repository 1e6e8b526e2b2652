"""What becomes of an attempt and its task, decided from rows alone."""

from collections import Counter

import pytest

from db.writes.attempt_ends import FailureHistory, decide
from db.writes.attempt_results import merge_durations
from db.writes.lost_artifacts import Outputs, lost_names
from db.writes.transitions import LockedTask, Transition, group
from jobs.errors import InvalidTransition
from jobs.state import LOST_WITH_LEADER_TRIES, Failure, FailureKind, TaskState
from jobs.task import TaskResult

TASK = LockedTask("j-01", TaskState.RUNNING, 3, 0, "j-01-3", None)
CANCELLING = LockedTask("j-01", TaskState.CANCELLING, 3, 0, "j-01-3", None)
LOST_TWICE = FailureHistory(Counter({FailureKind.NODE_LOST: 2}))


def result(kind: FailureKind | None) -> TaskResult:
    return TaskResult("j-01-3", 3, Failure(kind, "why") if kind else None)


@pytest.mark.parametrize(
    ("task", "kind", "history", "is_leader_gone", "expected"),
    [
        (TASK, None, FailureHistory(), False, (TaskState.SUCCEEDED, False)),
        (TASK, FailureKind.TOOL_FAILED, FailureHistory(), False, (TaskState.FAILED, True)),
        (TASK, FailureKind.NODE_LOST, FailureHistory(), False, (TaskState.QUEUED, True)),
        (TASK, FailureKind.NODE_LOST, LOST_TWICE, False, (TaskState.FAILED, True)),
        (TASK, FailureKind.NODE_LOST, LOST_TWICE, True, (TaskState.QUEUED, False)),
        (TASK, FailureKind.REQUEUED, LOST_TWICE, False, (TaskState.QUEUED, False)),
        (TASK, FailureKind.CANCELLED, FailureHistory(), False, (TaskState.CANCELLED, True)),
        (CANCELLING, None, FailureHistory(), False, (TaskState.CANCELLED, False)),
    ],
)
def test_the_kind_of_a_failure_and_its_history_decide_what_becomes_of_the_task(
    task: LockedTask,
    kind: FailureKind | None,
    history: FailureHistory,
    is_leader_gone: bool,
    expected: tuple[TaskState, bool],
) -> None:
    end = decide(task, result(kind), history, is_leader_gone=is_leader_gone)
    assert (end.state, end.is_counted) == expected
    assert end.result == result(kind)


def test_a_task_that_loses_leader_after_leader_fails_and_is_named_as_the_suspect() -> None:
    history = FailureHistory(uncounted=Counter({FailureKind.LEASE_LOST: LOST_WITH_LEADER_TRIES - 1}))
    end = decide(TASK, result(FailureKind.NODE_LOST), history, is_leader_gone=True)
    assert end.state is TaskState.FAILED
    assert end.result.failure is not None
    assert "takes that machine down" in end.result.failure.message


def test_outputs_that_were_made_since_are_not_lost() -> None:
    outputs = Outputs(7, frozenset({("a", "1"), ("b", "2")}))
    assert lost_names(outputs, {("a", "1"), ("c", "3")}, begin_event=8) == ["a"]
    assert lost_names(outputs, {("a", "1")}, begin_event=6) == []
    assert lost_names(None, {("a", "1")}, begin_event=8) == []


def test_transitions_that_one_statement_carries_out_are_grouped() -> None:
    plain, valued = Transition(TASK, TaskState.SUCCEEDED), Transition(TASK, TaskState.QUEUED, values={"epoch": 4})
    assert group([plain, valued, plain]) == {
        (TaskState.RUNNING, TaskState.SUCCEEDED, ()): [plain, plain],
        (TaskState.RUNNING, TaskState.QUEUED, ("epoch",)): [valued],
    }
    with pytest.raises(InvalidTransition):
        group([Transition(CANCELLING, TaskState.SUCCEEDED)])


def test_only_the_latest_durations_are_kept() -> None:
    assert merge_durations({"a": [1, 2, 3, 4, 5]}, {"a": [6.0], "b": [7.0]}) == {"a": [2, 3, 4, 5, 6.0], "b": [7.0]}
