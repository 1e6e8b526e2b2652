"""`run_leader` in the daemon: which heads are refused or stand by, and what happens to running attempts."""

import socket
import subprocess
import time
from pathlib import Path

from db.connection.engine import open_database
from db.reads import reports
from db.store import LeaderKind, Store
from jobs.errors import AlreadyLeading
from jobs.state import FailureKind, TaskState
from orchestrator.leader.loop import ELECTION_EVERY_S, REFUSE_AFTER_S
from tests.databases import LEADERS, PostgresServer
from tests.in_memory import NODE, InMemoryExecutor
from tests.integration.attempts import until
from tests.integration.heads import leading, one_export, only, outcomes, state
from tests.stored_jobs import submit
from workers.artifacts import ArtifactStore


def test_a_second_head_is_refused_and_told_who_leads(database_url: str, store: Store, tmp_path: Path) -> None:
    with leading(database_url, tmp_path, lambda: InMemoryExecutor(NODE)) as first:
        until(lambda: first.has_said("leads"), "the first leads")
        with leading(database_url, tmp_path, lambda: InMemoryExecutor(NODE)) as second:
            until(second.has_ended, "the second gives up")
        assert isinstance(second.error, AlreadyLeading)
        assert "the head on " in str(second.error)
    assert first.error is None
    leader = reports.leader(store.database)
    assert leader is not None
    assert leader.ended_at is not None


def test_a_head_waits_for_the_lock_of_one_that_was_just_killed_here(
    database_url: str, store: Store, tmp_path: Path
) -> None:
    with subprocess.Popen(["/bin/true"]) as killed:
        killed.wait()
    store.start_term(LeaderKind.HEAD, socket.gethostname(), killed.pid)
    with store.database.leader_lock() as not_dropped_yet:
        assert not_dropped_yet.try_acquire()
        with leading(database_url, tmp_path, lambda: InMemoryExecutor(NODE)) as daemon:
            refused_at = time.monotonic() + REFUSE_AFTER_S
            until(lambda: time.monotonic() > refused_at + ELECTION_EVERY_S, "a living one would refuse it by now")
            assert not daemon.has_ended()
            not_dropped_yet.close()
            until(lambda: daemon.has_said("leads"), "it leads")
    assert daemon.error is None


def test_a_head_that_stands_by_takes_over_what_the_first_leaves_running(
    database_url: str, store: Store, tmp_path: Path
) -> None:
    executors = [InMemoryExecutor(NODE), InMemoryExecutor(NODE)]
    executors[1].keeps_running = True
    name = one_export(store)
    with leading(database_url, tmp_path, lambda: executors[0], leaves_running=True) as first:
        until(lambda: executors[0].started, "the task runs")
        with leading(database_url, tmp_path, lambda: executors[1], standby=True) as second:
            until(lambda: second.has_said("stands by"), "the second stands by")
            first.end()
            assert (executors[0].is_detached, executors[0].is_closed) == (True, False)
            until(lambda: executors[1].in_flight() == {f"{name}-1"}, "the second has taken over")
            executors[1].end(only(executors[0]))
            until(lambda: state(store, name) is TaskState.SUCCEEDED, "its result is stored")
        assert (first.error, second.error) == (None, None)
    assert executors[1].started == []


def test_a_head_that_ends_hands_back_what_runs(database_url: str, store: Store, tmp_path: Path) -> None:
    executor = InMemoryExecutor(NODE)
    name = one_export(store)
    with leading(database_url, tmp_path, lambda: executor) as daemon:
        until(lambda: executor.started, "the task runs")
    assert daemon.error is None
    assert executor.is_closed
    assert outcomes(store, name) == [("failed", FailureKind.REQUEUED)]


def test_a_head_rides_out_that_the_database_is_away_and_loses_no_result(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    executor = InMemoryExecutor(NODE)
    with postgres.new_database() as url:
        name = url.rpartition("/")[2]
        with leading(url, tmp_path, lambda: executor) as daemon:
            with open_database(url, create=False) as database:
                task_name = one_export(Store(database))
                until(lambda: executor.started, "the task runs")
            postgres.administer(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            postgres.cut(f"pg_stat_activity WHERE datname = '{name}'")
            executor.end(only(executor))
            until(lambda: daemon.has_said("; trying again"), "it says that the database is away")
            postgres.administer(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            until(lambda: daemon.has_said("is reachable again, after"), "it says that this is over")
            with open_database(url, create=False) as database:
                until(lambda: state(Store(database), task_name) is TaskState.SUCCEEDED, "the result is stored")
                assert len(outcomes(Store(database), task_name)) == 1
        assert daemon.error is None
        assert sum("; trying again" in line for line in daemon.said) == 1
        assert not executor.is_detached


def test_a_head_rides_out_that_the_whole_artifact_store_is_gone_and_takes_no_file_for_lost(
    database_url: str, store: Store, tmp_path: Path
) -> None:
    executor = InMemoryExecutor(NODE)
    job = submit(store, stages=["export", "compile"])
    with leading(database_url, tmp_path, lambda: executor) as daemon:
        until(lambda: executor.started, "the export runs")
        (tmp_path / "model.mlir").write_text("module {}")
        mlir = ArtifactStore(tmp_path / "artifacts").put(tmp_path / "model.mlir", "mlir")
        (tmp_path / "artifacts").rename(tmp_path / "unmounted")
        executor.end(only(executor), artifacts=(mlir,))
        until(lambda: daemon.has_said("it is gone: mount it"), "the head says that the store is gone")
        until(lambda: state(store, f"{job}-02") is TaskState.QUEUED, "what could be done without it is done")
        submit(store, stages=["export"])
        (tmp_path / "unmounted").rename(tmp_path / "artifacts")
        until(lambda: f"{job}-02-1" in executor.started, "it goes on")
        until(lambda: daemon.has_said("is reachable again"), "the head says that it is over")
    assert sum("it is gone" in line for line in daemon.said) == 1
    assert executor.started == [f"{job}-01-1", f"{job}-02-1"]
    assert outcomes(store, f"{job}-01") == [("succeeded", None)]


def test_a_head_that_somebody_took_the_lead_from_leaves_what_runs_and_stands_by(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    executors: list[InMemoryExecutor] = []

    def make_executor() -> InMemoryExecutor:
        executors.append(InMemoryExecutor(NODE))
        executors[-1].keeps_running = True
        return executors[-1]

    with postgres.new_database() as url, open_database(url, create=False) as database:
        store = Store(database)
        name = one_export(store)
        with leading(url, tmp_path, make_executor) as daemon:
            until(lambda: executors and executors[0].started, "the task runs")
            with database.leader_lock() as other:
                while not other.try_acquire():
                    postgres.cut(LEADERS)
                until(lambda: daemon.has_said("stands by"), "it leads no more")
                assert (executors[0].is_detached, executors[0].is_closed) == (True, False)
                assert state(store, name) is TaskState.RUNNING
            until(lambda: len(executors) == 2 and executors[1].in_flight(), "it leads again, and takes over")
            assert executors[1].term > executors[0].term
            executors[1].end(executors[0].attempts[f"{name}-1"])
            until(lambda: state(store, name) is TaskState.SUCCEEDED, "the result is stored")
        assert daemon.error is None
