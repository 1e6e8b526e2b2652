"""The store on real databases: every move is guarded, told, and made once."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest
from sqlalchemy.exc import StatementError

from db.connection.engine import Database
from db.reads import reports
from db.store import CacheHit, LeaderKind, Store, Submission
from jobs.errors import Conflict
from jobs.plan import Plan, plan
from jobs.state import GONE, LOST_WITH_LEADER_TRIES, POLICIES, TRANSITIONS, Failure, FailureKind, TaskState
from jobs.task import Attempt, Command, Measurement, Process
from tests.stored_jobs import (
    BROKEN,
    DIGEST,
    LOG,
    LOST,
    TINY,
    VMFB,
    attempt_of,
    begun,
    bring,
    everything,
    fail,
    finish,
    give_back,
    open_task,
    result_of,
    spec_of,
    start,
    submit,
    succeed,
)


def state_of(store: Store, task: str) -> TaskState:
    return reports.task(store.database, task).state


def test_a_submitted_job_is_all_pending_and_as_planned(store: Store) -> None:
    job = submit(store, variants={"tp": [1, 2], "target": ["cpu", "mi300x"]})
    made = plan(spec_of(variants={"tp": [1, 2], "target": ["cpu", "mi300x"]}), TINY)
    tasks = store.snapshot().tasks
    assert [task.id for task in tasks] == [f"{job}-{number:02}" for number in range(1, len(made.tasks) + 1)]
    key_of = dict(zip((task.id for task in tasks), (task.key for task in made.tasks), strict=True))
    for found, planned in zip(tasks, made.tasks, strict=True):
        assert found.state is TaskState.PENDING
        assert (found.stage, found.subject, found.resources) == (planned.stage, planned.subject, planned.resources)
        assert found.settings == planned.settings
        assert tuple(key_of[need] for need in found.needs) == planned.needs
        assert {need.id: need.stage for need in found.needed}.keys() == set(found.needs)
        assert (found.timeout_s, found.submitted_by, found.toolchain) == (1800.0, "ada", "default")
        assert found.reuse == (found.stage != "benchmark")  # whose numbers are always measured anew


def test_user_names_and_passwords_in_commands_and_variables_are_not_stored(store: Store, database: Database) -> None:
    task = f"{submit(store)}-01"
    store.queue([task])
    secret = Command(("curl", "--proxy=user:hush@proxy:1", "http://hush@host/"), {"https_proxy": "user:hush@proxy:1"})
    attempt = replace(attempt_of(open_task(store, task)), commands=(secret,))
    store.start([begun(attempt)])
    process = Process(secret.argv, 0, 0.5, 1)
    finish(store, replace(result_of(attempt), processes=(process,), environment=secret.env))
    row = reports.attempts(database, task)[0]
    assert row.commands[0].argv == row.processes[0].argv == ("curl", "--proxy=***@proxy:1", "http://***@host/")
    assert "hush" not in str(everything(database))


def test_a_job_that_cannot_be_stored_whole_is_not_stored_at_all(store: Store, database: Database) -> None:
    spec = spec_of()
    made = plan(spec, TINY)
    last = replace(made.tasks[-1], settings={"x": float("nan")})
    with pytest.raises((StatementError, ValueError), match="not JSON compliant"):
        store.submit(
            Submission(
                plan=Plan(made.variants, (*made.tasks[:-1], last)),
                name="x",
                spec={},
                model=TINY,
                submitted_by="ada",
                timeout_s=1,
                reuse=True,
            )
        )
    assert not any(everything(database).values())


def test_a_task_goes_from_submission_to_success_and_every_step_leaves_an_event(store: Store) -> None:
    task = f"{submit(store)}-01"
    store.queue([task])
    store.set_wait_reasons({task: ("needs 8 x mi300x; the cluster has none", True)})
    assert open_task(store, task).waits_for == "needs 8 x mi300x; the cluster has none"
    attempt = start(store, task)
    (running,) = store.snapshot().running
    assert (running.id, running.task, running.epoch, running.places[0].node) == (attempt.id, task, 1, "a")
    assert running.devices == attempt.devices
    assert (open_task(store, task).waits_for, open_task(store, task).is_unschedulable) == (None, False)
    assert finish(store, result_of(attempt)) is TaskState.SUCCEEDED
    assert store.outputs(task) == (LOG, VMFB)
    assert store.snapshot().running == ()
    steps = [(event.from_state, event.to_state, event.attempt) for event in reports.events(store.database, task=task)]
    assert steps == [
        ("pending", "queued", None),
        ("queued", "running", attempt.id),
        ("running", "succeeded", attempt.id),
    ]


Move = Callable[[Store, str], Any]


def _asked(request: Move) -> Move:
    """What users ask for says so when there is nothing to do."""

    def move(store: Store, task: str) -> Any:
        with suppress(Conflict):
            return request(store, task)
        return []

    return move


#: Each of the store's moves: what it is tried with, the states that it may find, and what the first of them becomes.
MOVES: dict[str, tuple[Move, dict[TaskState, TaskState]]] = {
    "queue": (lambda store, task: store.queue([task]), {TaskState.PENDING: TaskState.QUEUED}),
    "block": (lambda store, task: store.block({task: "no"}), {TaskState.PENDING: TaskState.BLOCKED}),
    "take_over": (
        lambda store, task: store.record_cache_hits([CacheHit(task, "c" * 64, _succeeded_elsewhere(store))]),
        {TaskState.QUEUED: TaskState.CACHED},
    ),
    "start": (
        lambda store, task: store.start([begun(attempt_of(open_task(store, task)))]),
        {TaskState.QUEUED: TaskState.RUNNING},
    ),
    "finish": (
        lambda store, task: store.finish([result_of(_latest(store, task))]),
        {TaskState.RUNNING: TaskState.SUCCEEDED, TaskState.CANCELLING: TaskState.CANCELLED},
    ),
    "fail": (
        lambda store, task: store.finish([result_of(_latest(store, task), BROKEN)]),
        {TaskState.RUNNING: TaskState.FAILED, TaskState.CANCELLING: TaskState.CANCELLED},
    ),
    "give_back": (
        lambda store, task: give_back(store, _latest(store, task).id),
        {TaskState.RUNNING: TaskState.QUEUED, TaskState.CANCELLING: TaskState.CANCELLED},
    ),
    "unqueue": (lambda store, task: store.unqueue([task]), {TaskState.QUEUED: TaskState.PENDING}),
    "request_cancel": (
        _asked(Store.request_cancel),
        {
            TaskState.PENDING: TaskState.CANCELLED,
            TaskState.QUEUED: TaskState.CANCELLED,
            TaskState.RUNNING: TaskState.CANCELLING,
        },
    ),
    "retry": (
        _asked(Store.retry),
        {
            TaskState.FAILED: TaskState.PENDING,
            TaskState.BLOCKED: TaskState.PENDING,
            TaskState.CANCELLED: TaskState.PENDING,
        },
    ),
}


def _latest(store: Store, task: str) -> Attempt:
    """The attempt that a task has, or would have had."""
    found = open_task(store, task)
    return attempt_of(replace(found, epoch=max(found.epoch - 1, 0)))


def _succeeded_elsewhere(store: Store) -> str:
    found = store.find_all_cached(["c" * 64]).get("c" * 64)
    assert found is not None
    return found.task


@pytest.mark.parametrize("state", TaskState)
def test_a_move_happens_from_its_own_states_and_changes_nothing_from_any_other(store: Store, state: TaskState) -> None:
    succeed(store, f"{submit(store)}-01", "c" * 64)
    for name, (move, allowed) in MOVES.items():
        task = f"{submit(store)}-01"
        bring(store, task, state)
        before = everything(store.database)
        if state in allowed:
            assert move(store, task)
            last = reports.events(store.database, task=task)[-1]
            assert (name, last.from_state, last.to_state) == (name, state, allowed[state])
            assert state_of(store, task) is allowed[state]
        else:
            assert not move(store, task)
            assert (name, everything(store.database)) == (name, before)


def test_the_moves_together_are_all_the_transitions_but_those_of_an_attempt_that_ends_cancelled() -> None:
    made = {(was, to) for _, allowed in MOVES.values() for was, to in allowed.items()}
    possible = {(was, to) for was, goals in TRANSITIONS.items() for to in goals}
    assert made <= possible
    assert possible - made == {
        (TaskState.QUEUED, TaskState.FAILED),
        (TaskState.PENDING, TaskState.FAILED),  # tests/integration/leader/test_isolation.py
        (TaskState.RUNNING, TaskState.CANCELLED),
        (TaskState.SUCCEEDED, TaskState.PENDING),  # tests/integration/leader/test_lost_artifacts.py
        (TaskState.CACHED, TaskState.PENDING),
    }


def test_an_attempt_that_ended_because_it_was_asked_to_cancels_its_task(store: Store) -> None:
    task = f"{submit(store)}-01"
    attempt = start(store, task)
    ended = result_of(attempt, Failure(FailureKind.CANCELLED, "ended"))
    assert finish(store, ended) is TaskState.CANCELLED


def test_of_many_each_moves_by_itself(store: Store) -> None:
    job = submit(store, variants={"tp": [1, 2, 4, 8]}, stages=["export", "compile"])
    tasks = [f"{job}-{number:02}" for number in range(1, 9)]
    assert store.queue([*tasks[:4], "0-01", tasks[0]]) == set(tasks[:4])
    assert store.queue(tasks) == set(tasks[4:])
    assert store.block(dict.fromkeys(tasks, "no")) == set()
    attempts = [attempt_of(open_task(store, task)) for task in tasks]
    stale = replace(attempts[2], id=f"{tasks[2]}-2", epoch=2)
    wanted = [*attempts[:2], stale, *attempts[3:6]]
    assert store.start([begun(attempt) for attempt in wanted]) == {attempt.id for attempt in wanted if attempt != stale}
    results = [result_of(attempts[0]), result_of(attempts[1], BROKEN), result_of(attempts[2]), result_of(attempts[0])]
    ends = store.finish([*results, result_of(attempts[3], LOST), result_of(replace(attempts[4], epoch=2))])
    assert ends == {attempts[0].id: "succeeded", attempts[1].id: "failed", attempts[3].id: "queued"}
    assert len(reports.events(store.database, job=job)) == 1 + 8 + 5 + 3
    numbers = everything(store.database)["measurements"]
    assert Counter(row[1] for row in numbers) == {attempts[index].id: 2 for index in (0, 1)}


def test_a_late_answer_of_an_attempt_that_was_given_up_changes_nothing(store: Store) -> None:
    task = f"{submit(store)}-01"
    first = start(store, task)
    assert give_back(store, first.id) is TaskState.QUEUED
    before = everything(store.database)
    assert store.finish([result_of(first)]) == {}
    assert everything(store.database) == before
    second = start(store, task)
    assert (second.id, second.epoch) == (f"{task}-2", 2)
    before = everything(store.database)
    assert store.finish([result_of(first)]) == {}
    assert everything(store.database) == before
    assert finish(store, result_of(second)) is TaskState.SUCCEEDED


def test_a_late_answer_keeps_none_of_its_task_from_being_stored(store: Store) -> None:
    task = f"{submit(store)}-01"
    first = start(store, task)
    give_back(store, first.id)
    second = start(store, task)
    assert store.finish([result_of(first), result_of(second)]) == {second.id: TaskState.SUCCEEDED}


def test_a_result_is_stored_once_however_often_it_comes(store: Store) -> None:
    attempt = start(store, f"{submit(store)}-01")
    store.finish([result_of(attempt), result_of(attempt, BROKEN)])
    before = everything(store.database)
    assert store.finish([result_of(attempt)]) == {}
    assert everything(store.database) == before
    assert len(before["measurements"]) == 2


def test_what_a_leader_of_an_earlier_term_begins_is_refused(store: Store) -> None:
    old = store.start_term(LeaderKind.HEAD, "h1", 1)
    task = f"{submit(store)}-01"
    store.queue([task])
    attempt = attempt_of(open_task(store, task))
    new = store.start_term(LeaderKind.HEAD, "h2", 2)
    assert new > old
    assert store.start([begun(attempt, old)]) == set()
    assert store.start([begun(attempt, new)]) == {attempt.id}


@pytest.mark.parametrize("kind", [kind for kind, policy in POLICIES.items() if policy.tries != 1])
def test_what_blames_the_machine_is_tried_again_so_often_and_anew_after_a_retry(
    store: Store, kind: FailureKind
) -> None:
    task = f"{submit(store)}-01"
    failure, tries = Failure(kind, "the machine"), POLICIES[kind].tries
    if tries is None:
        assert all(finish(store, result_of(start(store, task), failure)) is TaskState.QUEUED for _ in range(20))
        return
    for _ in range(2):
        ends = [finish(store, result_of(start(store, task), failure)) for _ in range(tries)]
        assert ends == [TaskState.QUEUED] * (tries - 1) + [TaskState.FAILED]
        store.retry(task)
    epochs = [attempt.epoch for attempt in reports.attempts(store.database, task)]
    assert epochs == list(range(1, 2 * tries + 1))


def test_each_kind_of_failure_has_tries_of_its_own(store: Store) -> None:
    task = f"{submit(store)}-01"
    for kind in (FailureKind.NODE_LOST, FailureKind.OUT_OF_DISK, FailureKind.NODE_LOST, FailureKind.OUT_OF_DISK):
        assert finish(store, result_of(start(store, task), Failure(kind, "no"))) is TaskState.QUEUED
    assert finish(store, result_of(start(store, task), LOST)) is TaskState.FAILED


@pytest.mark.parametrize("kind", sorted(GONE))
def test_what_is_gone_with_its_leader_uses_up_none_of_the_tries(store: Store, kind: FailureKind) -> None:
    task = f"{submit(store)}-01"
    for _ in range(LOST_WITH_LEADER_TRIES - 1):
        assert die_with_leader(store, task, kind) is TaskState.QUEUED
    term = store.start_term(LeaderKind.HEAD, "h", 2)
    for _ in range(2):
        assert give_back(store, start(store, task, term=term).id) is TaskState.QUEUED
    assert give_back(store, start(store, task, term=term).id) is TaskState.FAILED


def die_with_leader(store: Store, task: str, kind: FailureKind) -> TaskState | None:
    """What becomes of a task whose leader is killed, so that the next one ends its attempt."""
    attempt = start(store, task, term=store.start_term(LeaderKind.HEAD, "h", 1))
    store.start_term(LeaderKind.HEAD, "h", 2)
    return give_back(store, attempt.id, Failure(kind, "its head died"))


def test_a_task_that_may_be_what_kills_its_leaders_has_an_end(store: Store) -> None:
    task = f"{submit(store)}-01"
    for _ in range(2):
        kinds = islice(cycle((FailureKind.NODE_LOST, FailureKind.LEASE_LOST)), LOST_WITH_LEADER_TRIES)
        ends = [die_with_leader(store, task, kind) for kind in (FailureKind.REQUEUED, *kinds)]
        assert ends == [TaskState.QUEUED] * LOST_WITH_LEADER_TRIES + [TaskState.FAILED]
        store.retry(task)
    failure = reports.attempts(store.database, task)[-1].failure
    assert failure
    assert failure.message == (
        "its head died; 5 of its attempts were lost together with their leader: "
        "the task may be what takes that machine down"
    )


def test_a_task_is_found_by_its_digest_once_it_succeeded_and_the_newest_first(store: Store) -> None:
    assert store.find_all_cached([DIGEST]).get(DIGEST) is None
    tasks = [f"{submit(store)}-01" for _ in range(3)]
    fail(store, tasks[0])
    assert store.find_all_cached([DIGEST]).get(DIGEST) is None
    for task in tasks[1:]:
        succeed(store, task)
        found = store.find_all_cached([DIGEST]).get(DIGEST)
        assert found is not None
        assert (found.task, found.attempt, found.artifacts) == (task, f"{task}-1", (LOG, VMFB))


def test_a_cached_task_has_the_earlier_tasks_outputs(store: Store) -> None:
    earlier, task = f"{submit(store)}-01", f"{submit(store)}-01"
    succeed(store, earlier)
    store.queue([task])
    assert store.record_cache_hits([CacheHit(task, "0" * 64, earlier)]) == set()
    assert store.record_cache_hits([CacheHit(task, DIGEST, earlier)]) == {task}
    assert store.outputs(task) == store.outputs(earlier) == (LOG, VMFB)
    assert reports.task(store.database, task).cached_from == earlier
    again = f"{submit(store)}-01"
    store.queue([again])
    found = store.find_all_cached([DIGEST]).get(DIGEST)
    assert found is not None
    assert found.task == earlier


def test_what_tools_print_is_stored_even_when_it_is_no_text(store: Store) -> None:
    task = f"{submit(store)}-01"
    fail(store, task, Failure(FailureKind.TOOL_FAILED, "bad \0 byte \udcff", "tail \0"))
    failure = reports.task(store.database, task).failure
    assert failure == Failure(FailureKind.TOOL_FAILED, "bad \ufffd byte ?", "tail \ufffd")


@pytest.mark.parametrize(
    "bad",
    [
        {"measurements": (Measurement("kl_max", (float("nan"),)),)},
        {"measurements": (Measurement("no_such_metric", (1.0,)),)},
        {"measurements": (Measurement("kl_max", ()),)},
        {"artifacts": (LOG, LOG)},
    ],
    ids=["nan", "metric", "no samples", "a file twice"],
)
def test_a_result_that_cannot_be_stored_says_so_and_keeps_no_other_from_it(store: Store, bad: dict[str, Any]) -> None:
    job = submit(store, variants={"tp": [1, 2, 4]}, stages=["export"])
    attempts = [start(store, f"{job}-0{number}") for number in (1, 2, 3)]
    results = [result_of(attempt) for attempt in attempts]
    ends = store.finish([results[0], replace(results[1], **bad), results[2]])
    assert list(ends.values()) == [TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SUCCEEDED]
    failure = reports.task(store.database, f"{job}-02").failure
    assert failure is not None
    assert (failure.kind, failure.message[:26]) == (FailureKind.INTERNAL, "its result can't be stored")
    assert {row[1] for row in everything(store.database)["measurements"]} == {attempts[0].id, attempts[2].id}
