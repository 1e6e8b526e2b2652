"""The database is the only truth: the next process continues where a killed one stopped; nothing counts twice."""

import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from tests.acceptance.haloctl import COMMAND_S, Haloctl, Running, left_in, until
from tests.acceptance.job_specs import ONE_EXPORT, TWO_EXPORTS
from tests.acceptance.timing import TIMED, timing

RUNNING = "running    export"
RAY = "gcs_server"  #: of which every Ray has one


def submitted(haloctl: Haloctl, running: Running) -> str:
    """The id of the job that a `submit --wait` is about."""
    running.until_says(" variant")
    return running.err.split()[1].rstrip(":")


def measurements(haloctl: Haloctl, job: str) -> Counter[tuple[str, str]]:
    """How often each metric of each task is stored."""
    return Counter((row["task"], row["metric"]) for row in haloctl.json("results", "--job", job))


def test_a_killed_submit_leaves_nothing_and_wait_finishes_its_job(fresh: Haloctl, temporary: Path) -> None:
    before = left_in(temporary)
    submit = fresh.start("submit", fresh.job(**TWO_EXPORTS), "--wait")
    submit.until_says(RUNNING)
    job = submitted(fresh, submit)
    submit.signal(signal.SIGKILL)
    assert submit.end().code == -signal.SIGKILL
    fresh.until_gone()
    until(lambda: left_in(temporary) <= before, "Ray's folder is removed")
    assert set(fresh.states(job).values()) <= {"running", "queued"}

    done = fresh.run("wait", job)
    assert done.code == 0, done.err
    fresh.until_gone()
    tasks = fresh.tasks(job)
    assert {task["state"] for task in tasks.values()} == {"succeeded"}
    stored = measurements(fresh, job)
    assert {task for task, _ in stored} == {task["task"] for task in tasks.values()}
    assert set(stored.values()) == {1}
    assert list((fresh.data / "work").glob("*")) == []

    interrupted = next(task for task in tasks.values() if task["attempts"] == 2)
    first, second = fresh.json("show", interrupted["task"])["attempts"]
    assert (first["failure"]["kind"], first["artifacts"]) == ("lease_lost", [])
    assert (second["outcome"], second["failure"]) == ("succeeded", None)


def test_of_two_submits_one_leads_and_both_end_well(fresh: Haloctl) -> None:
    path = fresh.job(**ONE_EXPORT)
    both = [fresh.start("submit", path, "--wait", "--no-cache") for _ in range(2)]
    jobs = [submitted(fresh, running) for running in both]
    most = 0

    def have_ended() -> bool:
        nonlocal most
        most = max(most, sum(RAY in name for name in programs(fresh)))
        return all(running.process.poll() is not None for running in both)

    until(have_ended, "both end", COMMAND_S)
    assert most == 1
    assert [running.end().code for running in both] == [0, 0]
    for job in jobs:
        assert list(fresh.states(job).values()) == ["succeeded"]
        assert set(measurements(fresh, job).values()) == {1}
    fresh.until_gone()


def test_the_second_takes_over_when_the_first_is_killed_and_what_that_timed_has_ended(copied: Haloctl) -> None:
    """The tool itself would go on for hours."""
    first = timing(copied)
    until(lambda: tools(copied), "the tool runs")
    second = copied.start("submit", copied.job(**ONE_EXPORT), "--wait", "--no-cache")
    job = submitted(copied, second)
    first.submit.signal(signal.SIGKILL)
    first.submit.end()
    assert copied.json("cancel", first.job)["cancelled"]  # nothing else may run while something is timed
    done = second.end()
    assert copied.states(first.job)[TIMED] == "cancelled"
    assert not tools(copied)
    assert done.code == 0, done.err
    assert list(copied.states(job).values()) == ["succeeded"]
    copied.until_gone()


def tools(haloctl: Haloctl) -> list[str]:
    """Return the stage programs that are timing."""
    return [name for name in programs(haloctl) if "iree-benchmark" in name]


def programs(haloctl: Haloctl) -> list[str]:
    """The programs that run for a haloctl."""
    names = []
    for process in haloctl.processes():
        with suppress(psutil.Error):
            names.append(process.name())
    return names
