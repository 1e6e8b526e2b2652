"""`haloctl nodes`: a machine's hardware, settings and usage. Drivers are stand-ins."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.haloctl import COMMAND, Haloctl
from tests.gpu_drivers import GIB, IDLE_BYTES, Drivers

#: Run in a mount namespace of its own: the machine's settings are files of the test's, and stay as they are outside.
IN_OTHER_SETTINGS = """
mount --make-rprivate / && mount --bind "$0/numa_balancing" /proc/sys/kernel/numa_balancing &&
for folder in /sys/devices/system/cpu /sys/kernel/mm /sys/class/iommu; do
    [ ! -d $folder ] || mount --bind "$0/empty" $folder || exit 99
done
exec "$@"
"""


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    return Drivers(tmp_path / "tools", "rocm-smi")


@pytest.fixture
def machine(tmp_path: Path, drivers: Drivers) -> Haloctl:
    """A haloctl on a machine with two MI300X."""
    folder = tmp_path / "home"
    folder.mkdir()
    return Haloctl(folder, tmp_path, PATH=drivers.environment()["PATH"])


def may_unshare(flag: str) -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    return subprocess.run([unshare, flag, "true"], capture_output=True, check=False).returncode == 0


def test_nodes_list_gpus_with_their_serials_and_memory(machine: Haloctl, drivers: Drivers) -> None:
    (node,) = machine.json("nodes")
    (gpu, _) = (device for device in node["devices"] if device["kind"] == "mi300x")
    assert (gpu["serial"], gpu["memory_bytes"], gpu["memory_used_bytes"]) == (
        "0x00000000000000a0",
        192 * GIB,
        IDLE_BYTES,
    )
    assert node["versions"]["amd_driver"] == "6.8.5"
    assert "2 x mi300x" in machine.answer("nodes")


def test_a_check_says_what_is_not_as_wanted_and_is_no_error(machine: Haloctl) -> None:
    (node,) = machine.json("nodes", "check")
    checks = {check["name"]: check for check in node["checks"]}
    assert (checks["amd_clocks"]["found"], checks["amd_clocks"]["is_ok"]) == ("auto", False)
    assert checks["hip_force_dev_kernarg"]["is_ok"]
    (line,) = [line for line in machine.answer("nodes", "check").splitlines() if " amd_clocks " in line]
    assert "perf_determinism" in line
    assert "FAIL" in line


def test_a_driver_that_fails_is_told_of_and_the_node_is_still_there(machine: Haloctl, drivers: Drivers) -> None:
    with drivers.silent(fails="the driver is gone"):
        (node,) = machine.json("nodes", "check")
    checks = {check["name"]: check for check in node["checks"]}
    assert "the driver is gone" in checks["amd_tool"]["found"]


@pytest.mark.skipif(os.geteuid() != 0 or not may_unshare("-m"), reason="needs a mount namespace")
def test_fix_changes_this_machine_and_says_each_change(machine: Haloctl, drivers: Drivers, tmp_path: Path) -> None:
    numa_balancing = tmp_path / "numa_balancing"
    numa_balancing.write_text("1\n")
    (tmp_path / "empty").mkdir()
    command = ("unshare", "-m", "sh", "-c", IN_OTHER_SETTINGS, str(tmp_path), *COMMAND, "nodes", "check", "--fix")
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert numa_balancing.read_text() == "0"
    assert {card.level for card in drivers.read()} == {"perf_determinism"}
    assert "numa_balancing: changed" in done.stderr
    assert "amd_clocks: changed" in done.stderr
    assert "FAIL" not in done.stdout


@pytest.mark.skipif(not may_unshare("-U"), reason="needs a user namespace")
def test_fix_without_rights_says_what_somebody_with_rights_would_run(machine: Haloctl, drivers: Drivers) -> None:
    command = ("unshare", "-U", sys.executable, "-m", "orchestrator.cli", "nodes", "check", "--fix")
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert f"sudo {drivers.folder}/rocm-smi --setperfdeterminism 1900" in done.stderr
    assert "still not as recommended: " in done.stderr
    assert {card.level for card in drivers.read()} == {"auto"}


def test_what_is_quarantined_is_shown_with_the_reason_until_it_is_released(machine: Haloctl) -> None:
    machine.answer("nodes", "quarantine", "local/mi300x:1", "--why", "row remapping pending")
    shown = machine.answer("nodes")
    assert "row remapping pending" in shown
    again = machine.run("nodes", "quarantine", "local/mi300x:1", "--why", "once more")
    assert (again.code, "already quarantined: row remapping pending" in again.err) == (5, True)
    machine.answer("nodes", "release", "local/mi300x:1")
    assert "row remapping" not in machine.answer("nodes")
    assert machine.run("nodes", "release", "local/mi300x:1").code == 5


def test_a_gpu_in_use_is_taken_out_of_use_and_its_task_goes_to_another(copied: Haloctl, drivers: Drivers) -> None:
    copied.environment["PATH"] = drivers.environment()["PATH"]  # its job has waited for an MI300X
    job = copied.only_job()["job"]
    with ExitStack() as stack:
        stranger = stack.enter_context(subprocess.Popen(("sleep", "600")))
        drivers.give(0, stranger.pid, 12 * GIB)
        stack.callback(stranger.kill)
        waiting = copied.start("wait", job)
        waiting.until_says("retry after node_unfit")
        waiting.signal(signal.SIGINT)
        waiting.end()
    (node,) = copied.json("nodes")
    first, second = [device["quarantine_reason"] for device in node["devices"] if device["kind"] == "mi300x"]
    assert f"pid {stranger.pid} (sleep, " in first
    assert second is None


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("local/mi300x:9", 4, "no device is called 'local/mi300x:9'"),
        ("n9", 4, "no node is called 'n9'"),
        ("local/mi300x", 2, "neither a node nor a device"),
    ],
)
def test_what_does_not_exist_is_not_quarantined(machine: Haloctl, target: str, code: int, message: str) -> None:
    done = machine.run("nodes", "quarantine", target, "--why", "x")
    assert (done.code, message in done.err) == (code, True), done.err
