"""While one process runs a job, others ask about it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import opened, until
from tests.acceptance.timing import NEXT, TIMED, Timing, timing


@pytest.fixture(scope="module")
def watched(temporary: Path, filled: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Timing]:
    """For reading only, but for the last test."""
    with opened(tmp_path_factory.mktemp("watched"), temporary, filled.haloctl.data) as haloctl:
        yield timing(haloctl)


def test_list_says_that_the_job_runs(watched: Timing) -> None:
    assert watched.haloctl.json("list")[0]["state"] == "running"
    assert watched.haloctl.answer("list").splitlines()[1].split()[:3] == [watched.job, "running", "4/6"]


def test_show_says_what_runs_where_and_what_waits_for_it(watched: Timing) -> None:
    tasks = watched.haloctl.tasks(watched.job)
    assert (tasks[TIMED]["state"], tasks[TIMED]["node"], tasks[TIMED]["devices"]) == ("running", "local", ["cpu:0"])
    assert tasks[TIMED]["took"]
    assert tasks[NEXT]["state"] == "queued"
    assert "runs nothing else" in tasks[NEXT]["waits_for"]


def test_the_matrix_shows_the_verdicts_that_there_are(watched: Timing) -> None:
    row = next(iter(watched.haloctl.json("matrix", watched.job)))
    assert {stage: cell["state"] for stage, cell in row["stages"].items()} == {
        "export": "cached",
        "compile": "cached",
        "benchmark": "running",
    }
    assert "running" in watched.haloctl.answer("matrix", watched.job)


def test_the_log_can_be_read_while_it_grows(watched: Timing) -> None:
    until(lambda: watched.haloctl.answer("logs", watched.task).startswith("$ "), "the log begins with the command")


def test_wait_ends_when_its_time_is_over_and_leaves_the_job(watched: Timing) -> None:
    done = watched.haloctl.run("wait", watched.job, "--timeout", "1")
    assert done.code == 0
    assert "the time to wait is over" in done.err
    assert watched.haloctl.json("list")[0]["state"] == "running"


def test_cancelling_from_another_process_ends_it_all(watched: Timing) -> None:
    haloctl, job = watched.haloctl, watched.job
    log = haloctl.start("logs", "--follow", watched.task)
    until(lambda: log.out, "the log is followed")

    assert haloctl.json("cancel", job)["cancelled"]

    assert haloctl.states(job)[TIMED] == haloctl.states(job)[NEXT] == "cancelled"
    done = watched.submit.end()
    assert done.code == 3
    assert done.err.splitlines()[-1].startswith(f"haloctl: job {job} ended as cancelled")
    assert log.end().code == 0
    haloctl.until_gone()
    assert haloctl.json("list")[0]["state"] == "cancelled"
    assert list((haloctl.data / "work").iterdir()) == []
