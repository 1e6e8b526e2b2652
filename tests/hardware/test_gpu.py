"""Real GPUs: the shipped model from submit to its numbers, and what drivers tell. Skipped where there is none."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.targets import TARGETS
from jobs.task import Device
from jobs.toolchains import Toolchain
from tests.integration.attempts import FINITE_INVOCATION, attempt, python, until
from workers import device_users, fitness, gpus
from workers.artifacts import ArtifactStore
from workers.devices import describe_node
from workers.environment import environment
from workers.processes import Cancellation
from workers.run_task import run
from workers.sampling import Sampling

NODE = describe_node("here")
GPUS = sorted({device.kind for device in NODE.devices} & (TARGETS.keys() - {"cpu"}))
GIB = 1 << 30

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


#: Holds 4 GiB of the only GPU that it sees, writes how many that is to a file, and ends when its stdin does.
HOLD = """
import sys, torch
held = torch.ones(1 << 30, device="cuda")
torch.cuda.synchronize()
open(sys.argv[1], "w").write(str(torch.cuda.device_count()))
sys.stdin.read()
"""


@pytest.fixture(params=GPUS)
def gpu(request: pytest.FixtureRequest) -> Device:
    """The last of each kind, so that an index is told from a place in a list."""
    return [device for device in NODE.devices if device.kind == request.param][-1]


@pytest.fixture
def with_torch() -> None:
    """Memory of a GPU can be held."""
    if subprocess.run([sys.executable, "-c", "import torch; torch.ones(1).cuda()"], check=False).returncode:
        pytest.skip("this torch has no support for this machine's GPU")


@pytest.fixture
def stranger(gpu: Device, with_torch: None, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Somebody else's process on it."""
    with holding(gpu, tmp_path / "ready") as process:
        yield process


@contextmanager
def holding(gpu: Device, ready: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds memory of a GPU until its input ends."""
    command = (sys.executable, "-c", HOLD, str(ready))
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment([gpu])) as process:
        until(lambda: ready.exists() and ready.read_text(), "it holds its memory")
        assert ready.read_text() == "1"
        yield process


#: Holds memory as HOLD does, tells so by the file argv[1], and ends when there is a file argv[2].
MEASURED = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {HOLD!r}, sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
while not os.path.exists(sys.argv[2]) and child.poll() is None:
    time.sleep(0.01)
child.communicate()
{FINITE_INVOCATION}
"""


@pytest.mark.usefixtures("with_torch")
def test_a_second_process_on_a_gpu_in_the_middle_of_a_run_is_seen_and_the_runs_own_are_not(
    gpu: Device, tmp_path: Path
) -> None:
    own, go = tmp_path / "own", tmp_path / "go"
    given = attempt(python(MEASURED, str(own), str(go)), devices=(gpu,))
    store = ArtifactStore(tmp_path / "artifacts")

    def looks() -> list[set[int | None]]:
        found = [one.strangers[gpu] for one in list(sampling.samples) if gpu in one.strangers]
        return [{stranger.pid for stranger in one} for one in found]

    with Sampling(given) as sampling, ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        stack.callback(go.touch)
        running = threads.submit(run, given, tmp_path, store, Toolchain("default", {}), Cancellation())
        until(lambda: own.exists() or running.done(), "it holds memory of its own")
        alone = len(looks())
        until(lambda: len(looks()) > alone + 1, "it was looked at")
        assert not any(looks())
        with holding(gpu, tmp_path / "ready") as stranger:
            until(lambda: looks()[-1], "the stranger is seen")
            stranger.communicate()
        until(lambda: not looks()[-1], "it is gone again")
    assert running.result().failure is None
    known = {stranger.pid} if device_users.has_machines_numbers() else {stranger.pid, None}
    assert set.union(*looks()) <= known


def test_a_gpu_is_known_by_its_serial_and_its_memory(gpu: Device) -> None:
    assert gpu.serial
    assert gpu.memory_bytes > 16 * GIB
    assert gpu.memory_used_bytes is not None
    assert gpu.memory_used_bytes < gpu.memory_bytes
    assert all(check.is_ok for check in NODE.checks if check.name.endswith("_tool"))
    assert NODE.versions[f"{gpus.vendor_of(gpu.kind)}_driver"]


def test_a_gpus_clocks_power_and_heat_are_told_and_how_long_heat_slowed_it(gpu: Device) -> None:
    """What a measurement is sampled for, and by which it is marked."""
    told = gpus.now(gpus.vendor_of(gpu.kind) or "")[gpu.index].readings
    assert {"mhz", "memory_mhz", "power_w", "power_cap_w", "temperature_c"} <= set(told)
    assert 20 < told["temperature_c"] < 100
    assert 0 < told["power_w"] < 1.1 * told["power_cap_w"]
    assert {"heat_us", "heat_ticks", "is_slowed_by_heat"} & set(told)


def test_an_idle_gpu_is_fit(gpu: Device) -> None:
    given = attempt(python(""), devices=(gpu,))
    assert fitness.before(given, Cancellation()) == fitness.after(given) == ()


def test_a_gpu_that_somebody_uses_is_unfit_and_fit_again_after_that(
    gpu: Device, stranger: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    given = attempt(python(""), devices=(gpu,))
    result = run(given, tmp_path, store, Toolchain("default", {}), Cancellation())
    (unfit,) = result.unfit
    assert (unfit.kind, unfit.index) == (gpu.kind, gpu.index)
    assert f"pid {stranger.pid} " in unfit.reason
    stranger.communicate()
    assert fitness.after(given) == ()
