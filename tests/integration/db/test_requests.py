"""What users ask of stored jobs: cancel, retry, and finding them by the start of an id."""

import pytest

from db.connection.engine import Database
from db.reads import reports
from db.store import Store
from jobs.errors import AmbiguousId, NotFound, NothingToDo
from jobs.state import TaskState
from tests.stored_jobs import everything, fail, finish, result_of, start, submit, succeed


def test_cancelling_a_job_ends_at_once_what_does_not_run(store: Store) -> None:
    job = submit(store)
    succeed(store, f"{job}-01")
    attempt = start(store, f"{job}-02")
    assert store.request_cancel(job[:5]) == [f"{job}-02", f"{job}-03", f"{job}-04", f"{job}-05"]
    states = [task.state for task in store.snapshot().tasks]
    assert states == ["succeeded", "cancelling", "cancelled", "cancelled", "cancelled"]
    with pytest.raises(NothingToDo):
        store.request_cancel(job)
    assert finish(store, result_of(attempt)) is TaskState.CANCELLED
    assert store.snapshot().tasks == ()


def test_a_cancelled_attempt_leaves_its_log_and_no_numbers(store: Store, database: Database) -> None:
    task = f"{submit(store)}-01"
    attempt = start(store, task)
    store.request_cancel(task)
    store.finish([result_of(attempt)])
    kept = everything(database)
    assert kept["measurements"] == []
    assert [row[2] for row in kept["artifacts"]] == ["log"]
    assert reports.attempt(database, attempt.id).outcome == "cancelled"


def test_retrying_a_job_puts_back_what_failed_and_leaves_what_is_done(store: Store) -> None:
    job = submit(store)
    succeed(store, f"{job}-01")
    fail(store, f"{job}-02")
    for number in (3, 4, 5):
        store.block({f"{job}-0{number}": "compile failed"})
    assert store.retry(job) == [f"{job}-0{number}" for number in (2, 3, 4, 5)]
    assert {task.state for task in store.snapshot().tasks} == {TaskState.SUCCEEDED, TaskState.PENDING}
    assert reports.task(store.database, f"{job}-03").blocked_by is None
    with pytest.raises(NothingToDo):
        store.retry(job)


def test_retrying_a_task_takes_along_what_it_needs_and_what_needs_it(store: Store) -> None:
    job = submit(store, variants={"tp": [1, 2]}, stages=["export", "compile", "benchmark"])
    stage_of = {task.id: (task.stage, task.settings["tp"]) for task in store.snapshot().tasks}
    store.request_cancel(job)
    compile_tp2 = next(task for task, about in stage_of.items() if about == ("compile", 2))
    put_back = store.retry(compile_tp2)
    assert {stage_of[task] for task in put_back} == {("export", 2), ("compile", 2), ("benchmark", 2)}


def test_retrying_a_task_that_is_done_is_refused(store: Store) -> None:
    job = submit(store)
    succeed(store, f"{job}-01")
    store.block({f"{job}-02": "no"})
    with pytest.raises(NothingToDo):
        store.retry(f"{job}-01")


def test_ids_are_found_by_their_start_and_never_guessed(store: Store) -> None:
    job, other = submit(store), submit(store)
    assert store.request_cancel(f"{job}-01") == [f"{job}-01"]
    with pytest.raises(AmbiguousId):
        store.request_cancel(f"{job}-")
    with pytest.raises(AmbiguousId):
        store.request_cancel("")
    for stranger in ("g", "%", "_", "\udcff", f"{other}-99", "-"):
        with pytest.raises(NotFound):
            store.request_cancel(stranger)
