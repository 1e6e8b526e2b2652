"""However a job that runs is ended, no process of it is left and its state is told."""

import signal

import pytest

from tests.acceptance.haloctl import Haloctl, until
from tests.acceptance.jobs import ENDLESS
from tests.acceptance.timing import NEXT, SAID, TIMED, timing


def test_cancelling_from_another_process_ends_it_all(copied: Haloctl) -> None:
    running = timing(copied)
    log = copied.start("logs", "--follow", running.task)
    until(lambda: log.out, "the log is followed")

    assert copied.json("cancel", running.job)["cancelled"]

    assert copied.states(running.job)[TIMED] == copied.states(running.job)[NEXT] == "cancelled"
    done = running.submit.end()
    assert done.code == 3
    assert done.err.splitlines()[-1].startswith(f"haloctl: job {running.job} ended as cancelled")
    assert log.end().code == 0
    copied.until_gone()
    assert copied.json("list")[0]["state"] == "cancelled"
    assert list((copied.data / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGINT, 130, "cancelled"), (signal.SIGTERM, 143, "queued")]
)
def test_a_signal_ends_submit_and_every_process(copied: Haloctl, number: signal.Signals, code: int, state: str) -> None:
    running = timing(copied)
    running.submit.signal(number)
    done = running.submit.end()
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert copied.states(running.job)[TIMED] == state
    copied.until_gone()
    assert list((copied.data / "work").iterdir()) == []


def test_interrupting_wait_leaves_the_job(copied: Haloctl) -> None:
    job = copied.answer("submit", copied.job(**ENDLESS)).strip()
    waiting = copied.start("wait", job)
    waiting.until_says(SAID)
    waiting.signal(signal.SIGINT)
    done = waiting.end()
    assert done.code == 130
    assert f"`haloctl wait {job}` goes on with it" in done.err
    assert copied.states(job)[TIMED] == "queued"
    copied.until_gone()


def test_wait_ends_when_its_time_is_over_and_leaves_the_job(copied: Haloctl) -> None:
    job = copied.answer("submit", copied.job(**ENDLESS)).strip()
    done = copied.run("wait", job, "--timeout", "1")
    assert done.code == 0
    assert "the time to wait is over" in done.err
    copied.until_gone()
    assert copied.json("list")[0]["state"] in ("queued", "running")
