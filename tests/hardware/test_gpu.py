"""The shipped model on a real GPU, from submit to its numbers. Skipped where there is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.targets import TARGETS
from workers.devices import describe_node

GPUS = sorted({device.kind for device in describe_node("here").devices} & (TARGETS.keys() - {"cpu"}))

pytestmark = pytest.mark.skipif(not GPUS, reason="this machine has no GPU that haloctl has a target for")

JOB = """
name: on a GPU
model: tiny-llama
variants: {{precision: [f32, f16], tp: 1, target: {target}}}
workload: {{batch: [1, 4], prompt_tokens: [32, 128], new_tokens: 32}}
"""


def haloctl(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"HALOCTL_DATA": str(data)}
    return subprocess.run(
        (sys.executable, "-m", "orchestrator.cli", *words), env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("target", GPUS)
def test_every_stage_passes_on_this_machines_gpu(target: str, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(target=target))
    done = haloctl(tmp_path / "data", "submit", str(job), "--wait", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert {cell["state"] for row in rows for cell in row["stages"].values()} == {"succeeded"}
    results = json.loads(haloctl(tmp_path / "data", "results", "--metric", "itl_ms", "--json").stdout)
    assert {found["device"][0].split(":")[0] for found in results} == {target}
