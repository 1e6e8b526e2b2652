"""A row that no head can use fails its own task; everything else that the head does goes on."""

import sqlite3
from contextlib import closing

from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import ONE_EXPORT


def test_a_malformed_row_fails_its_task_and_the_others_are_done(fresh: Haloctl) -> None:
    file = fresh.job(**ONE_EXPORT)
    broken, good = (fresh.answer("submit", file).strip() for _ in range(2))
    with closing(sqlite3.connect(fresh.data / "haloctl.db")) as database, database:
        database.execute("UPDATE tasks SET settings = '{}' WHERE job = ?", (broken,))
    done = fresh.run("wait", good)
    assert done.code == 0, done.err
    (task,) = fresh.json("show", broken)["tasks"]
    assert (task["state"], task["failure"]["kind"]) == ("failed", "internal")
    assert "KeyError" in task["failure"]["message"]
    assert fresh.answer("logs", f"{broken}-01").startswith("Traceback")
    assert fresh.run("wait", broken).code == 3
