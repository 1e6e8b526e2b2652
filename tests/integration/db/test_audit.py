"""The checker on real databases: it is content with whatever the store wrote, and finds each planted violation."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from db.connection.engine import Database
from db.reads import audit
from db.schema.ids import job_of
from db.schema.tables import artifacts, attempts, events, measurements, tasks
from db.store import Cordon, LeaderKind, Store
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import GIB, Device, Node, Unfit
from tests.stored_jobs import (
    LOST,
    NOON,
    VMFB,
    attempt_of,
    begun,
    bring,
    fail,
    give_back,
    open_task,
    result_of,
    start,
    submit,
    succeed,
)

NODE = Node("a", "a.example", 8, GIB, (Device("cpu", 0, "s0"), Device("cpu", 1, "s1")))


def found(database: Database) -> set[str]:
    return {violation.about for violation in audit.violations(database)}


def test_whatever_the_store_writes_breaks_no_rule(clocked: Store) -> None:
    term = clocked.start_term(LeaderKind.HEAD, "h", 1)
    clocked.record_nodes([NODE])
    for state in TaskState:
        task = f"{submit(clocked)}-01"
        bring(clocked, task, state)
        assert found(clocked.database) == set(), state
        if state in {TaskState.RUNNING, TaskState.CANCELLING}:  # the next one wants its devices
            give_back(clocked, f"{task}-1")
    task = f"{submit(clocked)}-01"
    give_back(clocked, start(clocked, task, term=term).id)
    fail(clocked, task)
    clocked.retry(task)
    succeed(clocked, task)
    again = start(clocked, f"{job_of(task)}-02")
    gone = replace(result_of(again, Failure(FailureKind.INPUT_LOST, "model.vmfb: gone")), lost=(VMFB,))
    clocked.finish([gone])
    assert found(clocked.database) == set()
    succeed(clocked, task)
    clocked.cordon_node("a", Cordon.DRAINING, "asked for")
    clocked.quarantine([Unfit("a", "no answer", "cpu", 1)])
    assert found(clocked.database) == set()
    extent = audit.extent(clocked.database)
    assert (extent.tasks, extent.events) == (55, len(list_events(clocked.database)))


def list_events(database: Database) -> list[int]:
    with database.reading() as connection:
        return list(connection.scalars(select(events.c.id)))


Plant = Callable[[Connection, str], object]

#: What is done to a database in which task 01 succeeded at its second attempt, 02 runs, 03 is pending; what is found.
PLANTED: dict[str, tuple[Plant, str]] = {
    "an event is lost": (
        lambda db, job: db.execute(
            delete(events).where(events.c.task == f"{job}-01", events.c.to_state == TaskState.SUCCEEDED)
        ),
        "01",
    ),
    "an event is there twice": (
        lambda db, job: db.execute(
            insert(events).from_select(
                [column.name for column in events.c][1:],
                select(*list(events.c)[1:]).where(events.c.attempt == f"{job}-02-1"),
            )
        ),
        "02-1",
    ),
    "a move that there is not": (
        lambda db, job: db.execute(
            insert(events).values(
                at=NOON, job=job, task=f"{job}-03", from_state="pending", to_state="succeeded", detail=""
            )
        ),
        "03",
    ),
    "a state without an event": (
        lambda db, job: db.execute(update(tasks).where(tasks.c.id == f"{job}-03").values(state="queued")),
        "03",
    ),
    "an epoch without an attempt": (
        lambda db, job: db.execute(update(tasks).where(tasks.c.id == f"{job}-02").values(epoch=2)),
        "02",
    ),
    "what is done is open again, and nothing of it was lost": (
        lambda db, job: (
            db.execute(
                insert(events).values(
                    at=NOON, job=job, task=f"{job}-01", from_state="succeeded", to_state="pending", detail="why not"
                )
            ),
            db.execute(
                update(tasks).where(tasks.c.id == f"{job}-01").values(state="pending", lost_artifacts="model.mlir")
            ),
        ),
        "01",
    ),
    "what is lost of a task that is done": (
        lambda db, job: db.execute(update(tasks).where(tasks.c.id == f"{job}-01").values(lost_artifacts="model.mlir")),
        "01",
    ),
    "an attempt that nobody ended": (
        lambda db, job: db.execute(update(attempts).where(attempts.c.id == f"{job}-01-1").values(ended_at=None)),
        "01-1",
    ),
    "an attempt that nobody began": (
        lambda db, job: db.execute(
            delete(events).where(events.c.attempt == f"{job}-01-1", events.c.to_state == TaskState.RUNNING)
        ),
        "01-1",
    ),
    "two attempts that succeeded": (
        lambda db, job: db.execute(update(attempts).where(attempts.c.id == f"{job}-01-1").values(outcome="succeeded")),
        "01-1",
    ),
    "a success without one": (
        lambda db, job: db.execute(update(attempts).where(attempts.c.id == f"{job}-01-2").values(outcome="failed")),
        "01",
    ),
    "a result of what still runs": (
        lambda db, job: db.execute(
            insert(artifacts).values(attempt=f"{job}-02-1", name="log", kind="log", sha256="0" * 64, size_bytes=1)
        ),
        "02-1",
    ),
    "a number that is stored twice": (
        lambda db, job: db.execute(
            insert(measurements).from_select(
                [column.name for column in measurements.c][1:],
                select(*list(measurements.c)[1:]).where(measurements.c.attempt == f"{job}-01-2"),
            )
        ),
        "01-2",
    ),
    "a device in two hands": (
        lambda db, job: db.execute(
            text("UPDATE attempts SET places = (SELECT places FROM attempts WHERE id = :one) WHERE id = :other"),
            {"one": f"{job}-02-1", "other": f"{job}-04-1"},
        ),
        "04-1",
    ),
    "a start on a closed node": (
        lambda db, job: db.execute(
            text("UPDATE nodes SET cordon = 'draining', cordoned_after = 0 WHERE id = 'a'"),
        ),
        "02-1",
    ),
    "a start on a quarantined device": (
        lambda db, job: db.execute(
            text("""UPDATE devices SET quarantine_reason = 'hot', quarantined_after = 0 WHERE "index" = 0"""),
        ),
        "02-1",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_where_it_is(clocked: Store, name: str) -> None:
    clocked.record_nodes([NODE])
    job = submit(clocked)
    give_back(clocked, start(clocked, f"{job}-01").id, LOST)
    succeed(clocked, f"{job}-01")
    start(clocked, f"{job}-02")
    clocked.queue([f"{job}-04"])
    free = attempt_of(open_task(clocked, f"{job}-04"), devices=())
    assert clocked.start([begun(free)]) == {free.id}
    assert found(clocked.database) == set()
    plant, where = PLANTED[name]
    with clocked.database.writing() as connection:
        plant(connection, job)
    assert f"{job}-{where}" in found(clocked.database)
