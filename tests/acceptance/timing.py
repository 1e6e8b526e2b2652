"""A job that runs for as long as a test wants."""

from dataclasses import dataclass

from tests.acceptance.haloctl import Haloctl, Running
from tests.acceptance.job_specs import ENDLESS

SAID = "running    benchmark"  #: by `submit --wait` when the timing begins
TIMED, NEXT = "benchmark tiny-llama-FP16-TP1 cpu", "benchmark tiny-llama-FP16-TP2 cpu"


@dataclass(frozen=True)
class Timing:
    """A job that is being timed for hours."""

    haloctl: Haloctl
    job: str
    task: str
    submit: Running


def timing(haloctl: Haloctl) -> Timing:
    """Submit it, and wait until it is."""
    submit = haloctl.start("submit", haloctl.job(**ENDLESS), "--wait")
    submit.until_says(SAID)
    job = haloctl.json("list")[0]["job"]
    return Timing(haloctl, job, haloctl.tasks(job)[TIMED]["task"], submit)
