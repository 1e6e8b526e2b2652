"""Schedules in real databases: each time submits once, whoever looks, and whoever dies meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from db.connection.engine import Database, open_database
from db.reads import audit, reports
from db.writes import schedules
from db.writes.schedules import IfMissed, Schedule, ScheduleOutcome, ScheduleRun
from jobs.errors import NameTaken, NotFound, NothingToDo
from jobs.plan import Plan
from jobs.toolchain_table import TOOLCHAINS
from orchestrator.leader.schedules import Schedules
from tests.in_memory import NODE, InMemoryExecutor
from tests.integration.attempts import until
from tests.integration.heads import leading
from tests.stored_jobs import NOON, TINY, everything, spec_of

DAY = timedelta(days=1)
HEADS = 4


def nightly(name: str = "nightly", **changes: Any) -> Schedule:
    """At noon of every day, from NOON on."""
    spec = spec_of(name="all of it", priority=3).model_dump(mode="json")
    found = Schedule(
        name, "0 12 * * *", "UTC", "n.yaml", "name: n", spec, TINY, IfMissed.RUN, False, NOON, "ada", NOON - DAY
    )
    return replace(found, **changes)


def head(database: Database) -> Schedules:
    return Schedules(database, lambda: TOOLCHAINS)


def told(database: Database, name: str = "nightly") -> list[tuple[ScheduleOutcome, int, bool]]:
    """What came of its times, the first first."""
    return [(run.outcome, run.count, run.job is not None) for run in reversed(schedules.runs(database, name))]


def test_what_is_due_is_submitted_once_as_it_was_when_it_was_added(database: Database) -> None:
    schedules.add(database, nightly())
    nightly_head = head(database)
    assert nightly_head.submit_due(NOON - timedelta(seconds=1)) == []
    (job,) = nightly_head.submit_due(NOON)
    assert nightly_head.submit_due(NOON + timedelta(seconds=1)) == []
    row = reports.job(database, job)
    assert (row.name, row.submitted_by, row.submitted_at, row.schedule, row.tasks) == (
        "all of it",
        "ada",
        NOON,
        "nightly",
        5,
    )
    assert schedules.schedule(database, "nightly").next_at == NOON + DAY
    assert told(database) == [(ScheduleOutcome.SUBMITTED, 1, True)]
    assert list(audit.violations(database)) == []


def test_several_heads_submit_each_time_once(database: Database, database_url: str) -> None:
    schedules.add(database, nightly())
    start = Barrier(HEADS)

    def days(_: int) -> list[str]:
        with open_database(database_url, create=False) as own:
            found = []
            for day in range(3):
                start.wait(60)
                found += head(own).submit_due(NOON + day * DAY)
            return found

    with ThreadPoolExecutor(HEADS) as pool:
        submitted = [job for jobs in pool.map(days, range(HEADS)) for job in jobs]
    assert len(submitted) == len(set(submitted)) == 3
    assert {job.id for job in reports.jobs(database)} == set(submitted)
    assert told(database) == [(ScheduleOutcome.SUBMITTED, 1, True)] * 3


class Deadly(dict[str, Any]):
    """A job file whose reader is ended: the time was taken, and the job is not there yet."""

    def __getitem__(self, key: str) -> Any:
        raise KeyboardInterrupt


def test_a_head_that_dies_meanwhile_leaves_it_to_the_next(database: Database) -> None:
    schedules.add(database, nightly())
    before = everything(database)
    with pytest.raises(KeyboardInterrupt):
        schedules.record_runs(
            database,
            nightly(spec=Deadly()),
            NOON + DAY,
            [ScheduleRun(NOON, NOON, ScheduleOutcome.SUBMITTED)],
            Plan((), ()),
        )
    assert everything(database) == before
    assert len(head(database).submit_due(NOON)) == 1


def test_what_was_missed_is_reported_and_the_latest_run(database: Database) -> None:
    schedules.add(database, nightly())
    schedules.add(database, nightly("skipped", if_missed=IfMissed.SKIP))
    assert len(head(database).submit_due(NOON + 3 * DAY + timedelta(hours=2))) == 1
    assert told(database) == [(ScheduleOutcome.MISSED, 3, False), (ScheduleOutcome.SUBMITTED, 1, True)]
    assert told(database, "skipped") == [(ScheduleOutcome.MISSED, 4, False)]
    latest, missed = schedules.runs(database, "nightly")
    assert (missed.due_at, latest.due_at) == (NOON, NOON + 3 * DAY)
    assert "no head led" in missed.detail
    assert {one.next_at for one in schedules.schedules(database)} == {NOON + 4 * DAY}


def test_what_cannot_be_planned_any_more_is_noted_and_tried_again_the_next_time(database: Database) -> None:
    spec = spec_of(variants={"toolchain": ["iree-3.12"]}).model_dump(mode="json")
    spec["variants"]["toolchain"] = ["ours"]
    each = spec_of(benchmark={"on": "each_node"}).model_dump(mode="json")
    schedules.add(database, nightly(spec=spec))
    schedules.add(database, nightly("each", spec=each))
    schedules.add(database, nightly("well"))
    assert len(head(database).submit_due(NOON)) == 1
    assert told(database) == told(database, "each") == [(ScheduleOutcome.FAILED, 1, False)]
    assert "ours" in schedules.runs(database, "nightly")[0].detail
    assert schedules.schedule(database, "nightly").next_at == NOON + DAY


def test_what_is_paused_is_neither_submitted_nor_missed(database: Database) -> None:
    schedules.add(database, nightly())
    schedules.pause(database, "nightly")
    assert head(database).submit_due(NOON + 5 * DAY) == []
    schedules.resume(database, "nightly", NOON + 6 * DAY)
    with pytest.raises(NothingToDo):
        schedules.resume(database, "nightly", NOON)
    assert len(head(database).submit_due(NOON + 6 * DAY)) == 1
    assert told(database) == [(ScheduleOutcome.SUBMITTED, 1, True)]


def test_a_name_is_given_once_and_what_is_removed_leaves_its_jobs(database: Database) -> None:
    schedules.add(database, nightly())
    with pytest.raises(NameTaken):
        schedules.add(database, nightly())
    (job,) = head(database).submit_due(NOON)
    schedules.remove(database, "nightly")
    assert reports.job(database, job).schedule == "nightly"
    for act in (schedules.remove, schedules.schedule, schedules.pause):
        with pytest.raises(NotFound, match="schedule list"):
            act(database, "nightly")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_head_that_leads_submits_what_is_due_and_runs_it(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    schedules.add(database, nightly(spec=spec_of(name="night", stages=["export"]).model_dump(mode="json")))
    executor = InMemoryExecutor(NODE)
    with leading(database_url, tmp_path, lambda: executor) as daemon:
        until(lambda: executor.attempts, "what was missed since then is run")
    assert daemon.has_said("times: no head led when it was due")
    assert daemon.has_said("schedule nightly: submitted as job")
    assert [(job.name, job.schedule) for job in reports.jobs(database)] == [("night", "nightly")]
    assert told(database)[-2:] == [
        (ScheduleOutcome.MISSED, told(database)[0][1], False),
        (ScheduleOutcome.SUBMITTED, 1, True),
    ]


def test_a_schedule_is_read_as_it_was_added(database: Database) -> None:
    added = nightly(timezone="Europe/Berlin", text="name: n\n# ß\n", next_at=None)
    schedules.add(database, added)
    found = schedules.schedule(database, "nightly")
    assert asdict(found) == asdict(added)
