"""`haloctl db prune`: what nobody asks for of old jobs goes, their results stay, and an archive has everything."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import Database, open_database
from db.reads import audit, reports
from db.store import Store
from db.writes import pruning
from db.writes.changes import ChangeAction, changes
from jobs.state import TaskState
from jobs.task import GIB, Device, Node
from tests.integration.commands.in_process import Command, haloctl, rows
from tests.stored_jobs import DIGEST, LOST, Clock, fail, give_back, start, submit, succeed

__all__ = ["haloctl"]

NODE = Node("a", "a", 4, GIB, (Device("cpu", 0),))
CONFLICT = 5
LOG_TAIL = "segmentation fault"
REPLACED = 4  #: the place of `show` of a task with such an attempt among the answers


class World:
    """An old job that succeeded in part after a lost attempt and failed in the end, an old open one, and a new one."""

    def __init__(self, database: Database) -> None:
        clock = Clock()
        clock.now = datetime.now(UTC) - timedelta(days=100)
        self.store = Store(database, clock)
        self.store.record_nodes([NODE])
        self.old, self.open = submit(self.store), submit(self.store)
        give_back(self.store, start(self.store, f"{self.old}-01").id, replace(LOST, log_tail=LOG_TAIL))
        succeed(self.store, f"{self.old}-01")
        fail(self.store, f"{self.old}-02")
        self.store.block({f"{self.old}-0{number}": "a task that it needs failed" for number in (3, 4, 5)})
        clock.passes(days=95)
        self.new = submit(self.store)
        self.store.request_cancel(self.new)


@pytest.fixture
def world(database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch, haloctl: Command) -> World:
    monkeypatch.setenv("HALOCTL_DATABASE_URL", database_url)
    return World(database)


def answers(haloctl: Command, world: World) -> list[str]:
    """What is asked of a job later."""
    commands: list[tuple[str, ...]] = [
        *(("why", f"{world.old}-0{number}") for number in (1, 2, 3)),
        *(("show", world.old), ("show", f"{world.old}-01"), ("show", f"{world.old}-02")),
        *(("matrix",), ("results",), ("list",), ("reproduce", f"{world.old}-01")),
    ]
    done = [haloctl(*command) for command in commands]
    assert [answer.err for answer in done if answer.code] == []
    return [answer.out for answer in done]


def events_of(store: Store, job: str) -> list[tuple[Any, Any]]:
    return [(event.from_state, event.to_state) for event in reports.events(store.database, job=job)]


def test_old_jobs_lose_their_events_and_keep_what_is_asked_for(world: World, haloctl: Command, tmp_path: Path) -> None:
    store, archive = world.store, tmp_path / "all.gz"
    before, of_new = answers(haloctl, world), events_of(store, world.new)
    all_events = events_of(store, world.old)
    told = haloctl("db", "prune", "--older-than", "90d")
    assert "would drop" in told.err
    assert "--yes" in told.err
    assert events_of(store, world.old) == all_events

    done = json.loads(haloctl("db", "prune", "--older-than", "90d", "--yes", "--archive", str(archive), "--json").out)
    assert events_of(store, world.old) == [(None, None), (TaskState.RUNNING, TaskState.SUCCEEDED)]
    assert (done["jobs"], done["events"], done["log_tails"]) == (1, len(all_events) - 2, 1)
    assert (events_of(store, world.new), len(events_of(store, world.open))) == (of_new, 1)
    before[REPLACED] = before[REPLACED].replace(f"  | {LOG_TAIL}\n", "")  # of the attempt that another one replaced
    assert answers(haloctl, world) == before
    assert haloctl("db", "check").code == 0
    last = rows(haloctl, "events", "--job", world.old)[-1]
    assert (last["change"], f"{archive}" in last["detail"]) == ("prune", True)
    assert [change.subject for change in changes(store.database) if change.action is ChangeAction.PRUNE] == [world.old]
    assert store.find_all_cached([DIGEST])[DIGEST].attempt == f"{world.old}-01-2"

    again = json.loads(haloctl("db", "prune", "--older-than", "90d", "--yes", "--json").out)
    assert (again["jobs"], again["events"], again["archive"]) == (0, 0, None)
    with open_database(f"sqlite:///{tmp_path}/back.db", create=True) as back:
        assert haloctl_in(haloctl, f"sqlite:///{tmp_path}/back.db", "db", "import", str(archive)) == 0
        assert events_of(Store(back), world.old) == all_events
        assert list(audit.violations(back)) == []


def haloctl_in(haloctl: Command, url: str, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HALOCTL_DATABASE_URL", url)
        return haloctl(*arguments).code


def test_a_pruned_job_that_is_retried_goes_on(world: World, haloctl: Command) -> None:
    store = world.store
    assert haloctl("db", "prune", "--older-than", "90d", "--yes").code == 0
    store.retry(world.old)
    succeed(store, f"{world.old}-02")
    assert list(audit.violations(store.database)) == []
    assert reports.attempts(store.database, f"{world.old}-02")[-1].outcome == "succeeded"
    assert len(rows(haloctl, "why", f"{world.old}-02")) > 0


def test_what_was_retried_between_the_archive_and_the_pruning_stays(world: World) -> None:
    store = world.store
    before = datetime.now(UTC) - timedelta(days=90)
    jobs, _ = pruning.find_prunable(store.database, before)
    store.retry(world.old)
    events = events_of(store, world.old)
    assert pruning.prune(store.database, jobs, before, "x").jobs == 0
    assert events_of(store, world.old) == events


def test_nothing_is_pruned_where_the_archive_can_t_be_written(world: World, haloctl: Command, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    events = events_of(world.store, world.old)
    for archive in ("there", "no/such/folder"):
        refused = haloctl("db", "prune", "--older-than", "90d", "--yes", "--archive", str(tmp_path / archive))
        assert refused.code == 2
        assert archive in refused.err
    assert events_of(world.store, world.old) == events


def test_a_broken_pruned_job_is_found(world: World, haloctl: Command) -> None:
    """Success without its event would not be found by the cache."""
    from sqlalchemy import delete

    from db.schema.tables import events

    assert haloctl("db", "prune", "--older-than", "90d", "--yes").code == 0
    with world.store.database.writing() as connection:
        connection.execute(delete(events).where(events.c.attempt == f"{world.old}-01-2"))
    done = haloctl("db", "check")
    assert (done.code, f"{world.old}-01-2" in done.out) == (CONFLICT, True)
