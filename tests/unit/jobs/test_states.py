"""States, failures and errors: their tables are complete, and they survive travel."""

import pickle
from collections.abc import Iterator

import pytest

from jobs.errors import HaloError
from jobs.metrics import METRICS
from jobs.stages import STAGES
from jobs.state import (
    DONE,
    ENDED,
    GONE,
    POLICIES,
    TRANSITIONS,
    FailureKind,
    JobState,
    TaskState,
    counts,
    is_retried,
    job_state,
)


def test_every_state_has_its_moves_and_a_way_to_an_end() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    for state in TaskState:
        reached, todo = {state}, [state]
        while todo:
            fresh = TRANSITIONS[todo.pop()] - reached
            reached |= fresh
            todo += fresh
        assert reached & ENDED


def test_what_is_done_stays_done_but_for_being_made_again() -> None:
    assert all(TRANSITIONS[state] == {TaskState.PENDING} for state in DONE)


@pytest.mark.parametrize(
    ("tasks", "state"),
    [
        ([("queued", False), ("pending", False)], JobState.QUEUED),
        ([("succeeded", False), ("pending", False)], JobState.QUEUED),
        ([("running", False), ("failed", False)], JobState.RUNNING),
        ([("succeeded", False), ("queued", True)], JobState.WAITING),
        ([("failed", False), ("queued", True), ("blocked", False)], JobState.FAILED),
        ([("succeeded", False), ("cached", False)], JobState.SUCCEEDED),
        ([("succeeded", False), ("cancelled", False)], JobState.CANCELLED),
    ],
)
def test_a_jobs_state_is_what_its_tasks_add_up_to(tasks: list[tuple[str, bool]], state: JobState) -> None:
    assert job_state([(TaskState(name), is_unschedulable) for name, is_unschedulable in tasks]) is state


def test_every_kind_of_failure_says_how_often_it_is_tried_again() -> None:
    assert set(POLICIES) == set(FailureKind)
    assert is_retried(FailureKind.NODE_LOST, times=2)
    assert not is_retried(FailureKind.NODE_LOST, times=3)
    assert not is_retried(FailureKind.WRONG_NUMBERS, times=1)
    assert is_retried(FailureKind.REQUEUED, times=1000)


def test_what_its_leaders_death_did_counts_against_no_task() -> None:
    unlimited = {kind for kind, policy in POLICIES.items() if policy.tries is None}
    assert {kind for kind in FailureKind if not counts(kind, is_leader_gone=True)} == GONE | unlimited
    assert {kind for kind in FailureKind if not counts(kind, is_leader_gone=False)} == unlimited


def test_every_metric_that_a_stage_reports_is_known() -> None:
    from jobs.stages import export, numerics

    named = {*export.METRICS.values(), *numerics.METRICS}
    assert named <= set(METRICS)
    assert all(stage.name == name for name, stage in STAGES.items())


def errors(root: type[HaloError] = HaloError) -> Iterator[type[HaloError]]:
    for error in root.__subclasses__():
        if "__init__" in vars(error) or not error.__subclasses__():
            yield error
        yield from errors(error)


@pytest.mark.parametrize("kind", list(errors()), ids=lambda kind: kind.__name__)
def test_errors_survive_pickling(kind: type[HaloError]) -> None:
    fields = kind.__init__.__code__.co_argcount - 1
    values = [("a", "b") if name == "known" else name for name in kind.__init__.__code__.co_varnames[1 : fields + 1]]
    error = kind(*values)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) != ""
    assert kind.exit_code in range(2, 7)
