"""What a job was submitted with is what its stages read, or nothing comes of it."""

import shutil
from pathlib import Path
from typing import Any

from jobs.models import SHIPPED
from tests.acceptance.haloctl import Haloctl, until
from tests.acceptance.job_specs import ONE_EXPORT

MIB = 1 << 20


def test_weights_that_changed_after_the_submission_never_reach_the_cache(fresh: Haloctl) -> None:
    weights = Path(shutil.copytree(SHIPPED / "tiny-llama", fresh.folder / "model")) / "model.safetensors"
    content = weights.read_bytes()
    job = fresh.answer("submit", fresh.job(**{**ONE_EXPORT, "model": "./model"})).split()[0]

    zero_the_end_of(weights)
    assert fresh.run("wait", job).code == 3
    expect_changed(fresh, job, weights)

    weights.write_bytes(content)
    retrying = fresh.start("retry", job, "--wait")
    until(lambda: has_begun(fresh, job), "the export has begun")
    zero_the_end_of(weights)
    assert retrying.end().code == 3
    expect_changed(fresh, job, weights)

    weights.write_bytes(content)
    fresh.answer("retry", job, "--wait")
    assert only_task(fresh, job)["state"] == "succeeded", "there was nothing to reuse"
    (irpa,) = published(fresh, job, "irpa")
    fresh.answer("artifacts", "get", irpa["sha256"], "-o", "model.irpa")
    assert (fresh.folder / "model.irpa").read_bytes()[-MIB:].strip(b"\0")


def zero_the_end_of(weights: Path) -> None:
    with weights.open("r+b") as stream:
        stream.seek(-MIB, 2)
        stream.write(bytes(MIB))


def has_begun(haloctl: Haloctl, job: str) -> bool:
    """Whether a program of the job runs, or has run."""
    return any(log.read_text().startswith("$ ") for log in (haloctl.data / "logs").glob(f"{job}-*.log"))


def expect_changed(haloctl: Haloctl, job: str, file: Path) -> None:
    failure = only_task(haloctl, job)["failure"]
    assert failure["kind"] == "input_changed"
    assert failure["message"] == f"{file} has changed since the job was submitted: submit the job again"
    assert published(haloctl, job, "irpa") == []


def only_task(haloctl: Haloctl, job: str) -> dict[str, Any]:
    (task,) = haloctl.tasks(job).values()
    return task


def published(haloctl: Haloctl, job: str, kind: str) -> list[dict[str, Any]]:
    return [file for file in haloctl.json("artifacts", job) if file["kind"] == kind]
