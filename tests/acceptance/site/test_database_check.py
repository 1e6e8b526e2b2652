"""`haloctl db check`, as people and other tests call it."""

from pathlib import Path

import pytest
from sqlalchemy import update

from db.connection.engine import open_database
from db.schema.tables import tasks
from db.store import Store
from tests.acceptance.haloctl import Haloctl
from tests.stored_jobs import submit, succeed


@pytest.fixture
def haloctl(tmp_path: Path) -> Haloctl:
    return Haloctl(tmp_path, tmp_path)


def test_what_is_right_is_one_line_and_what_is_not_is_named_with_exit_code_5(haloctl: Haloctl) -> None:
    assert haloctl.run("db", "check").code == 6, "there is nothing to check yet"
    haloctl.answer("db", "upgrade")
    with open_database(f"sqlite:///{haloctl.data / 'haloctl.db'}", create=False) as database:
        job = submit(Store(database))
        succeed(Store(database), f"{job}-01")
        assert haloctl.answer("db", "check") == "no invariant is violated: 5 tasks, 1 attempts, 4 events\n"
        with database.writing() as connection:
            connection.execute(update(tasks).where(tasks.c.id == f"{job}-02").values(state="queued"))
    done = haloctl.run("db", "check")
    assert (done.code, done.out) == (5, f"{job}-02: it is queued, and its last event says pending\n")
    assert "in 1 places" in done.err
    checked = haloctl.run("db", "check", "--json")
    assert (checked.code, f'"about": "{job}-02"' in checked.out) == (5, True)
