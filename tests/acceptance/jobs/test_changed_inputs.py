"""What a job was submitted with is what its stages read, or nothing comes of it."""

import shutil
from pathlib import Path

from jobs.models import SHIPPED
from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import ONE_EXPORT

MIB = 1 << 20


def test_weights_that_changed_after_the_submission_never_reach_the_cache(fresh: Haloctl, tmp_path: Path) -> None:
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
    again = fresh.answer("submit", file, "--wait").split()[0]
    (task,) = fresh.tasks(again).values()
    assert task["state"] == "succeeded", "there was nothing to reuse"
    (irpa,) = (artifact for artifact in task["attempts"][-1]["artifacts"] if artifact["name"].endswith(".irpa"))
    fresh.answer("artifacts", "get", irpa["sha256"], "--output", str(tmp_path / "irpa"))
    assert (tmp_path / "irpa").read_bytes()[-MIB:].strip(b"\0")
