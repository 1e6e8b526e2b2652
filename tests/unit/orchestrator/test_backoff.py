"""A task that was refused is left alone for a while, which doubles; then it may be started again."""

from dataclasses import replace
from math import inf

from db.store import OpenTask
from jobs.state import TaskState
from jobs.task import Place, Resources
from orchestrator.leader.backoff import BACKOFF, TaskBackoff
from orchestrator.scheduler.decision import Start, Wait
from tests.stored_jobs import NOON

TASK = OpenTask(
    id="0123abcd-01",
    job="0123abcd",
    stage="export",
    subject="tiny",
    state=TaskState.QUEUED,
    epoch=0,
    needed=(),
    settings={},
    resources=Resources(),
    waits_for=None,
    is_unschedulable=False,
    submitted_at=NOON,
    submitted_by="ada",
    timeout_s=60.0,
    reuse=True,
)
START = Start(TASK, (Place("a"),))
OTHER = Start(replace(TASK, id="0123abcd-02"), (Place("a"),))
REASON = "somebody else holds node a"


def test_a_refused_task_waits_with_the_reason_and_others_start() -> None:
    now_s = [0.0]
    backoff = TaskBackoff(lambda: now_s[0])
    backoff.note(TASK.id, REASON)
    assert backoff.apply([START, OTHER]) == [Wait(TASK, REASON, is_unschedulable=False), OTHER]
    assert backoff.next_at() == BACKOFF.first_s
    now_s[0] = BACKOFF.first_s
    assert backoff.apply([START]) == [START]
    assert backoff.next_at() == inf, "it is over: nobody looks again for its sake"


def test_pauses_double_up_to_a_bound_and_a_start_ends_them() -> None:
    now_s = [0.0]
    backoff = TaskBackoff(lambda: now_s[0])
    pauses = []
    for _ in range(10):
        backoff.note(TASK.id, REASON)
        pauses.append(backoff.next_at() - now_s[0])
        now_s[0] = backoff.next_at()
        backoff.apply([START])
    assert pauses[:3] == [BACKOFF.first_s, 2 * BACKOFF.first_s, 4 * BACKOFF.first_s]
    assert pauses[-1] == BACKOFF.max_s
    backoff.note(TASK.id, None)
    backoff.note(TASK.id, REASON)
    assert backoff.next_at() - now_s[0] == BACKOFF.first_s


def test_a_task_that_is_over_is_forgotten() -> None:
    backoff = TaskBackoff(lambda: 0.0)
    backoff.note(TASK.id, REASON)
    backoff.retain(["0123abcd-02"])
    assert backoff.next_at() == inf


def test_a_task_that_the_store_failed_starts_ever_later_although_it_started_in_between() -> None:
    now_s = [0.0]
    backoff, pauses = TaskBackoff(lambda: now_s[0]), []
    for _ in range(3):
        backoff.note_store_fault(TASK.id, "the store is full")
        assert backoff.apply([START]) == [Wait(TASK, "the store is full", is_unschedulable=False)]
        pauses.append(backoff.next_at() - now_s[0])
        now_s[0] = backoff.next_at()
        assert backoff.apply([START]) == [START]
        backoff.note(TASK.id, None)
        backoff.retain([], [TASK.id])
    assert pauses == [BACKOFF.first_s, 2 * BACKOFF.first_s, 4 * BACKOFF.first_s]
    backoff.retain([])
    backoff.note_store_fault(TASK.id, "the store is full")
    assert backoff.next_at() - now_s[0] == BACKOFF.first_s, "it had ended"
