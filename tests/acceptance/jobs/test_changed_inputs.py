"""What a job was submitted with is what its stages read, or nothing comes of it."""

import shutil
from pathlib import Path

from jobs.models import SHIPPED
from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import ONE_EXPORT

MIB = 1 << 20


def test_weights_that_changed_after_the_submission_never_reach_the_cache(fresh: Haloctl) -> None:
    weights = Path(shutil.copytree(SHIPPED / "tiny-llama", fresh.folder / "model")) / "model.safetensors"
    content = weights.read_bytes()
    file = fresh.job(**{**ONE_EXPORT, "model": "./model"})
    job = fresh.answer("submit", file).split()[0]
    with weights.open("r+b") as stream:
        stream.seek(-MIB, 2)
        stream.write(bytes(MIB))

    assert fresh.run("wait", job).code == 3
    (task,) = fresh.tasks(job).values()
    assert task["failure"]["kind"] == "input_changed"
    assert task["failure"]["message"] == f"{weights} has changed since the job was submitted: submit the job again"

    weights.write_bytes(content)
    again = fresh.answer("submit", file).split()[0]
    fresh.answer("wait", again)
    (task,) = fresh.tasks(again).values()
    assert task["state"] == "succeeded", "there was nothing to reuse"
    (irpa,) = (file for file in fresh.json("artifacts", again) if file["kind"] == "irpa")
    fresh.answer("artifacts", "get", irpa["sha256"], "-o", "model.irpa")
    assert (fresh.folder / "model.irpa").read_bytes()[-MIB:].strip(b"\0")
