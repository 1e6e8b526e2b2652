"""A task that was refused is left alone for a while, which doubles; then it may be started again."""

from dataclasses import replace
from math import inf

from db.store import OpenTask
from jobs.state import TaskState
from jobs.task import Place, Resources
from orchestrator.leading.holdoffs import FIRST_S, LONGEST_S, HoldOffs
from orchestrator.scheduler import Start, Wait
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
    is_stuck=False,
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
    held = HoldOffs(lambda: now_s[0])
    held.note(TASK.id, REASON)
    assert held.apply([START, OTHER]) == [Wait(TASK, REASON, is_stuck=False), OTHER]
    assert held.next_at() == FIRST_S
    now_s[0] = FIRST_S
    assert held.apply([START]) == [START]
    assert held.next_at() == inf, "it is over: nobody looks again for its sake"


def test_pauses_double_up_to_a_bound_and_a_start_ends_them() -> None:
    now_s = [0.0]
    held = HoldOffs(lambda: now_s[0])
    pauses = []
    for _ in range(10):
        held.note(TASK.id, REASON)
        pauses.append(held.next_at() - now_s[0])
        now_s[0] = held.next_at()
        held.apply([START])
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses[-1] == LONGEST_S
    held.note(TASK.id, None)
    held.note(TASK.id, REASON)
    assert held.next_at() - now_s[0] == FIRST_S


def test_a_task_that_is_over_is_forgotten() -> None:
    held = HoldOffs(lambda: 0.0)
    held.note(TASK.id, REASON)
    held.keep(["0123abcd-02"])
    assert held.next_at() == inf
