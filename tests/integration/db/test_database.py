"""Opening databases: migrations, crashes, other processes, and one clear message for whatever can't be used."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, insert, text
from sqlalchemy.exc import IntegrityError

from db.connection import schema_version
from db.connection.engine import Database, open_database, upgrade
from db.connection.process_lock import FileProcessLock
from db.reads import reports
from db.schema.tables import SCHEMA, artifacts
from db.store import Store
from jobs.state import ACTIVE, TaskState
from tests.databases import LEADERS, PostgresServer
from tests.integration.attempts import until
from tests.stored_jobs import LOST, attempt_of, begun, everything, finish, open_task, result_of, start, submit

ROOT = Path(__file__).parents[3]
SPAWN = get_context("spawn")
DEADLINE_S = 30.0
NORMAL, FULL = 1, 2  #: https://www.sqlite.org/pragma.html#pragma_synchronous


def test_an_empty_database_is_made_ready_and_its_schema_is_that_of_the_tables(empty_url: str) -> None:
    with open_database(empty_url, create=True) as database, database.writing() as connection:
        assert schema_version.revision(connection) == SCHEMA
        command.check(schema_version.config(connection))


def test_results_are_on_the_disk_when_they_are_committed_and_polls_need_not_be(tmp_path: Path) -> None:
    committed: list[int] = []

    def note(connection: Connection) -> None:
        committed.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())

    with open_database(f"sqlite:///{tmp_path}/halo.db", create=True) as database:
        store = Store(database)
        job = submit(store)
        attempt = start(store, f"{job}-01")
        event.listen(Engine, "commit", note)
        try:
            finish(store, result_of(attempt))
            assert FULL in committed
            committed.clear()
            store.follow_log(attempt.id, 10)
            store.set_wait_reasons({f"{job}-02": ("cpu", False)})
            assert set(committed) == {NORMAL}
        finally:
            event.remove(Engine, "commit", note)


def test_the_check_of_the_schema_bites(empty_url: str) -> None:
    with open_database(empty_url, create=True) as database, database.writing() as connection:
        connection.execute(text("DROP INDEX ix_tasks_state_job"))
        with pytest.raises(Exception, match="ix_tasks_state_job"):
            command.check(schema_version.config(connection))


def test_migrations_are_one_numbered_line_that_ends_at_this_codes_schema(database: Database) -> None:
    with database.writing() as connection:
        scripts = ScriptDirectory.from_config(schema_version.config(connection))
    numbers = [script.revision for script in scripts.walk_revisions()]
    assert numbers == sorted(numbers, reverse=True)
    assert all(len(number) == 4 and number.isdigit() for number in numbers)
    assert scripts.get_heads() == [SCHEMA]


def test_upgrading_what_is_up_to_date_changes_nothing(store: Store, database_url: str) -> None:
    submit(store)
    before = everything(store.database)
    assert upgrade(database_url) == SCHEMA
    assert everything(store.database) == before


def test_rows_about_what_is_not_there_are_refused(database: Database) -> None:
    row = {"attempt": "a3f29c1d-01-1", "name": "log", "kind": "log", "sha256": "0" * 64, "size_bytes": 1}
    with pytest.raises(IntegrityError), database.writing() as connection:
        connection.execute(insert(artifacts).values(**row))


def test_many_processes_make_one_new_database(empty_url: str) -> None:
    with ProcessPoolExecutor(4, mp_context=SPAWN) as pool:
        jobs = [future.result() for future in [pool.submit(_create_and_submit, empty_url) for _ in range(8)]]
    with open_database(empty_url, create=False) as database:
        assert {job.id for job in reports.jobs(database)} == set(jobs)
        assert len(set(jobs)) == 8


def _create_and_submit(url: str) -> str:
    with open_database(url, create=True) as database:
        return submit(Store(database))


def test_one_process_leads_until_it_stops_or_dies(database_url: str) -> None:
    with open_database(database_url, create=False) as database, database.leader_lock() as mine:
        with leading_process(database_url) as other:
            assert not mine.try_acquire()
            other.send_signal(signal.SIGKILL)
            other.wait()
        until(mine.try_acquire, "the server dropped the dead process's lock")
        assert mine.try_acquire()
        with database.leader_lock() as another:
            assert not another.try_acquire()
        mine.close()
        with database.leader_lock() as another:
            until(another.try_acquire, "the server ended the session")


LEAD = """
import sys
from db.connection.engine import open_database
database = open_database(sys.argv[1], create=False)
leadership = database.leader_lock()
print(leadership.try_acquire(), flush=True)
sys.stdin.read()
"""


#: Leads, and replaces its program each time that it is told to.
LEAD_ON = """
import os, sys
from db.connection.engine import open_database
database = open_database(sys.argv[1], create=False)
leadership = database.leader_lock()
if len(sys.argv) > 2:
    leadership.adopt(int(sys.argv[2]))
print(leadership.try_acquire(), flush=True)
sys.stdin.readline()
os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], sys.argv[1], str(leadership.keep())])
"""


def test_the_lead_is_kept_while_its_program_is_replaced(database_url: str) -> None:
    """Somebody else tries to get it all the time."""
    is_over, tries = threading.Event(), list[bool]()

    def try_all_the_time() -> None:
        with open_database(database_url, create=False) as database, database.leader_lock() as other:
            while not is_over.is_set() and not any(tries):
                tries.append(other.try_acquire())

    leader = subprocess.Popen(
        [sys.executable, "-c", LEAD_ON, database_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with leader:
        assert leader.stdin and leader.stdout
        assert leader.stdout.readline() == "True\n"
        rival = threading.Thread(target=try_all_the_time)
        rival.start()
        for _ in range(3):
            leader.stdin.write("\n")
            leader.stdin.flush()
            assert leader.stdout.readline() == "True\n"
        is_over.set()
        rival.join()
        assert len(tries) > 10
        assert not any(tries)
        leader.kill()
    with open_database(database_url, create=False) as database, database.leader_lock() as other:
        until(other.try_acquire, "its death frees the lead")


def test_what_is_no_lock_is_not_adopted(database_url: str) -> None:
    with open_database(database_url, create=False) as database, database.leader_lock() as leader:
        assert leader.try_acquire()
        read_end, write_end = os.pipe()
        with database.leader_lock() as late:
            late.adopt(read_end)
            if isinstance(leader, FileProcessLock):
                assert not late.try_acquire()
                os.close(read_end)
        os.close(write_end)


@contextmanager
def leading_process(url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LEAD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_leader_that_the_server_cut_off_leads_no_more_until_it_asks_again(postgres: PostgresServer) -> None:
    with (
        postgres.new_database() as url,
        open_database(url, create=False) as database,
        database.leader_lock() as first,
        database.leader_lock() as second,
    ):
        assert first.try_acquire()
        postgres.cut(LEADERS)
        assert second.try_acquire()
        assert not first.try_acquire()


def test_the_change_token_differs_after_a_commit_of_anybody_and_only_then(store: Store, database_url: str) -> None:
    with open_database(database_url, create=False) as watching:
        seen = [watching.change_token() for _ in range(2)]
        job = submit(store)
        seen += [watching.change_token() for _ in range(2)]
        store.queue([f"{job}-01"])
        seen += [watching.change_token() for _ in range(2)]
        submit(Store(watching))
        seen += [watching.change_token() for _ in range(2)]
    assert seen[0::2] == seen[1::2]
    assert len(set(seen)) == 4


def test_a_watch_wakes_after_a_commit_of_anybody_and_goes_at_once_when_it_is_left(database_url: str) -> None:
    woken = threading.Event()
    with open_database(database_url, create=False) as watching, open_database(database_url, create=False) as other:
        with watching.monitor_changes(woken.set):
            assert woken.wait(DEADLINE_S), "it wakes once when it has begun"
            for writer in (other, watching):
                woken.clear()
                submit(Store(writer))
                assert woken.wait(DEADLINE_S)
        woken.clear()
        submit(Store(other))
        assert not any(thread.name == "database-watch" for thread in threading.enumerate())
        assert not woken.is_set()


def test_a_watch_outlives_a_restart_of_the_server(postgres: PostgresServer) -> None:
    woken = threading.Event()
    with (
        postgres.new_database() as url,
        open_database(url, create=False) as database,
        database.monitor_changes(woken.set),
    ):
        assert woken.wait(DEADLINE_S)
        woken.clear()
        postgres.restart()
        assert woken.wait(DEADLINE_S), "it wakes when the server is back: who knows what was missed"
        woken.clear()
        submit(Store(database))
        assert woken.wait(DEADLINE_S)


def test_readers_in_other_processes_see_whole_steps_while_one_writes(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    job = submit(store, variants={"tp": [1, 2, 4, 8]}, stages=["export", "compile"])
    watched = [tmp_path / "first", tmp_path / "second"]
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        readers = [pool.submit(_watch, database_url, job, file) for file in watched]
        deadline = time.monotonic() + 60
        while not all(file.exists() for file in watched) and time.monotonic() < deadline:
            attempts = [start(store, f"{job}-0{number}") for number in (1, 2, 3, 4)]
            store.finish([result_of(attempt, LOST) for attempt in attempts])
            if reports.job(store.database, job).counts.get(TaskState.FAILED):
                store.retry(job)
        assert all(file.exists() for file in watched)
        store.request_cancel(job)
        assert [reader.result(timeout=60) for reader in readers] == [True, True]


def _watch(url: str, job: str, file: Path) -> bool:
    """Read until the job is over, and make a file when something was seen to happen; whether all fitted together."""
    tokens = set()
    with open_database(url, create=False) as database:
        while (snapshot := Store(database).snapshot()).tasks:
            active = {task.id for task in snapshot.tasks if task.state in ACTIVE}
            if len(snapshot.tasks) != 8 or {running.task for running in snapshot.running} != active:
                return False
            tokens.add(database.change_token())
            if len(tokens) > 20:
                file.touch()
    return True


def sessions(database: Database) -> set[int]:
    """The server's processes for the clients of a database; none where there is no server."""
    with database.reading() as connection:
        if connection.dialect.name == "sqlite":
            return set()
        return set(connection.scalars(text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")))


def test_a_writer_that_is_killed_leaves_whole_jobs_only(database_url: str) -> None:
    with open_database(database_url, create=False) as database:
        mine = sessions(database)
        for round_ in range(1, 4):
            with subprocess.Popen([sys.executable, "-m", "tests.fill_database", database_url], cwd=ROOT) as writer:
                deadline = time.monotonic() + 60
                while len(reports.jobs(database)) < 10 * round_ and time.monotonic() < deadline:
                    assert writer.poll() is None
                writer.kill()
            until(lambda: sessions(database) <= mine, "the server has ended what the writer had begun")
            found = reports.jobs(database)
            assert len(found) >= 10 * round_
            assert {job.tasks for job in found} == {5}
            assert len(reports.events(database)) == len(found)


def _start_and_finish(url: str, task: str) -> str:
    """In a process of its own: try to be the one that runs a queued task."""
    with open_database(url, create=False) as database:
        store = Store(database)
        seen = open_task(store, task)
        if not store.start([begun(attempt_of(seen))]):
            return "lost"
        return str(finish(store, result_of(attempt_of(seen))))


def test_of_many_processes_that_start_the_same_task_one_does(store: Store, database_url: str) -> None:
    with ProcessPoolExecutor(3, mp_context=SPAWN) as pool:
        for _ in range(5):
            task = f"{submit(store)}-01"
            store.queue([task])
            ends = [
                future.result() for future in [pool.submit(_start_and_finish, database_url, task) for _ in range(3)]
            ]
            assert ends.count("succeeded") == 1
            assert len(reports.attempts(store.database, task)) == 1
