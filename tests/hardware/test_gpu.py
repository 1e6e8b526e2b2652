"""Real GPUs: the shipped model from submit to its numbers, and the drivers' reports. Skipped where there is none."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jobs.targets import TARGETS
from jobs.task import Device
from jobs.toolchains import Toolchain
from tests.integration.attempts import FINITE_INVOCATION, make_attempt, python, until
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.environment import stage_environment
from workers.machine import fitness, gpus, nvidia_gpus
from workers.machine.devices import describe_node
from workers.machine.driver_tools import find_tool
from workers.measurement.sampling import Sampler
from workers.processes import proc
from workers.processes.cancellation import Cancellation

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
    assert {row["device"][0].split(":")[0] for row in results} == {target}


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
    """The last GPU of each kind, so that its index differs from its place in a list of one."""
    return [device for device in NODE.devices if device.kind == request.param][-1]


@pytest.fixture
def with_torch() -> None:
    """Memory of a GPU can be held."""
    if subprocess.run([sys.executable, "-c", "import torch; torch.ones(1).cuda()"], check=False).returncode:
        pytest.skip("this torch has no support for this machine's GPU")


@pytest.fixture
def foreign(gpu: Device, with_torch: None, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process on the GPU that belongs to no attempt."""
    with holding(gpu, tmp_path / "ready") as process:
        yield process


@contextmanager
def holding(gpu: Device, ready: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds memory of a GPU until its input ends."""
    command = (sys.executable, "-c", HOLD, str(ready))
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=stage_environment([gpu])) as process:
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
def test_a_foreign_process_in_the_middle_of_a_run_is_seen_and_the_runs_own_are_not(gpu: Device, tmp_path: Path) -> None:
    own_ready, go = tmp_path / "own", tmp_path / "go"
    attempt = make_attempt(python(MEASURED, str(own_ready), str(go)), devices=(gpu,))
    store = ArtifactStore(tmp_path / "artifacts")

    def pids_seen() -> list[set[int | None]]:
        polls = [sample.foreign_processes[gpu] for sample in list(sampler.samples) if gpu in sample.foreign_processes]
        return [{process.pid for process in poll} for poll in polls]

    with Sampler(attempt) as sampler, ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        stack.callback(go.touch)
        running = threads.submit(run, attempt, tmp_path, store, Toolchain("default", {}), Cancellation())
        until(lambda: own_ready.exists() or running.done(), "it holds memory of its own")
        alone = len(pids_seen())
        until(lambda: len(pids_seen()) > alone + 1, "it was polled")
        assert not any(pids_seen())
        with holding(gpu, tmp_path / "ready") as foreign:
            until(lambda: pids_seen()[-1], "the foreign process is seen")
            foreign.communicate()
        until(lambda: not pids_seen()[-1], "it is gone again")
    assert running.result().failure is None
    known = {foreign.pid} if proc.is_in_host_pid_namespace() else {foreign.pid, None}
    assert set.union(*pids_seen()) <= known


def test_a_gpu_is_known_by_its_serial_and_its_memory(gpu: Device) -> None:
    assert gpu.serial
    assert gpu.memory_bytes > 16 * GIB
    assert gpu.memory_used_bytes is not None
    assert gpu.memory_used_bytes < gpu.memory_bytes
    assert all(check.is_ok for check in NODE.checks if check.name.endswith("_tool"))
    assert NODE.versions[f"{gpus.vendor_of(gpu.kind)}_driver"]


def test_a_gpus_clocks_power_and_temperature_are_read_and_its_thermal_throttling(gpu: Device) -> None:
    """A measurement is sampled, and marked by its samples."""
    readings = gpus.poll_gpus(gpus.vendor_of(gpu.kind) or "")[gpu.index].readings
    assert {"mhz", "memory_mhz", "power_w", "power_cap_w", "temperature_c"} <= set(readings)
    assert 20 < readings["temperature_c"] < 100
    assert 0 < readings["power_w"] < 1.1 * readings["power_cap_w"]
    assert {"thermal_throttle_us", "thermal_throttle_ticks", "is_thermal_throttled"} & set(readings)


@pytest.mark.skipif(not find_tool("nvidia-smi") or not find_spec("pynvml"), reason="takes nvidia-smi and nvidia-ml-py")
def test_nvml_and_nvidia_smi_report_the_same() -> None:
    by_library = gpus.list_gpus("nvidia")
    by_tool = nvidia_gpus.list_nvidia_gpus(driver=Path("/no/driver"))
    assert by_library
    assert by_tool
    assert (by_library.tool, by_tool.tool, by_library.driver) == ("NVML", "nvidia-smi", by_tool.driver)
    for first, second in zip(by_library.gpus, by_tool.gpus, strict=True):
        assert (first.index, first.name, first.serial, first.uuid) == (
            second.index,
            second.name,
            second.serial,
            second.uuid,
        )
        assert first.settings == second.settings
        assert abs(first.memory_bytes - second.memory_bytes) < 1 << 20
        assert abs((first.used_bytes or 0) - (second.used_bytes or 0)) < GIB
        for name in ("memory_mhz", "power_cap_w"):
            assert first.readings[name] == second.readings[name]
        if "thermal_throttle_us" in second.readings:
            assert abs(first.readings["thermal_throttle_us"] - second.readings["thermal_throttle_us"]) < 1e6


def test_an_idle_gpu_is_fit(gpu: Device) -> None:
    attempt = make_attempt(python(""), devices=(gpu,))
    assert fitness.check_before(attempt, Cancellation()) == fitness.check_after(attempt) == ()


def test_a_gpu_that_somebody_uses_is_unfit_and_fit_again_after_that(
    gpu: Device, foreign: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    attempt = make_attempt(python(""), devices=(gpu,))
    result = run(attempt, tmp_path, store, Toolchain("default", {}), Cancellation())
    (unfit,) = result.unfit
    assert (unfit.kind, unfit.index) == (gpu.kind, gpu.index)
    assert f"pid {foreign.pid} " in unfit.reason
    foreign.communicate()
    assert fitness.check_after(attempt) == ()
