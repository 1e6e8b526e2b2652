"""However a running job is ended, it leaves no process and its state is reported."""

import signal

import pytest

from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import ENDLESS
from tests.acceptance.timing import SAID, TIMED, timing


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
