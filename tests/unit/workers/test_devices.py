"""What a node says of itself, from what drivers' tools print."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs.errors import BadSetting
from jobs.task import Device
from tests.gpu_drivers import GIB, IDLE_BYTES, Drivers
from tests.integration.attempts import living, until
from workers.machine import devices, gpus
from workers.machine.device_masks import merge_amd_masks, visible_indices
from workers.machine.devices import NodeDescription, describe_node, gpu_devices
from workers.machine.driver_tools import TOOL_TIMEOUT_S, ToolFailed, ToolHung, run_tool
from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.gpu_processes import GpuProcess
from workers.machine.nvidia_gpus import list_nvidia_gpus


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drivers:
    """Tools in the only folder of PATH; which ones is for the test to say."""
    drivers = Drivers(tmp_path / "tools", "rocm-smi")
    monkeypatch.setenv("PATH", str(drivers.folder))
    return drivers


def failed_checks(*names: str, node: str = "n1") -> list[str]:
    checks = {check.name: check for check in describe_node(node).checks}
    return [checks[name].found for name in names if not checks[name].is_ok]


def test_a_node_lists_logical_cpu_devices_and_its_gpus_with_their_memory(drivers: Drivers) -> None:
    node = describe_node("n1")
    assert [node.count(kind) for kind in ("cpu", "mi300x", "h100")] == [8, 2, 0]
    device = node.devices[-1]
    assert device == Device("mi300x", 1, "0x00000000000000a1", 192 * GIB)
    assert device.memory_used_bytes == IDLE_BYTES


def test_gpus_of_two_vendors_may_be_in_one_node(drivers: Drivers, tmp_path: Path) -> None:
    nvidia = Drivers(tmp_path / "nvidia", "nvidia-smi", name="NVIDIA H100 80GB HBM3", cards=1)
    (drivers.folder / "nvidia-smi").symlink_to(nvidia.folder / "nvidia-smi")
    nvidia.file.rename(nvidia.folder / "kept")  # one file for both tools
    node = describe_node("n1")
    assert node.versions["amd_driver"] == "6.8.5"
    assert node.versions["nvidia_driver"] == "550.54.15"


def test_versions_name_the_kernel(drivers: Drivers) -> None:
    assert describe_node("n1").versions["kernel"] == os.uname().release


def test_amds_library_is_asked_before_its_tool(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Drivers(tmp_path / "library", "amdsmi", name="AMD Instinct MI325X")
    monkeypatch.syspath_prepend(library.folder)
    monkeypatch.setenv("PYTHONPATH", str(library.folder))
    assert describe_node("n1").count("mi325x") == 2
    with library.silent(fails="amdsmi finds no driver"):
        assert describe_node("n1").count("mi300x") == 2


def test_nvml_is_asked_before_its_tool_where_the_driver_is_loaded(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (drivers.folder / "rocm-smi").unlink()
    Drivers(drivers.folder, "nvidia-smi", name="NVIDIA H100 80GB HBM3", cards=1)
    library = Drivers(tmp_path / "library", "pynvml", name="NVIDIA H200")
    library.give(1, os.getpid(), 12 * GIB)
    monkeypatch.syspath_prepend(library.folder)
    monkeypatch.setenv("PYTHONPATH", str(library.folder))
    not_loaded = list_nvidia_gpus(driver=tmp_path / "not loaded")
    assert not_loaded
    assert (not_loaded.tool, len(not_loaded.gpus)) == ("nvidia-smi", 1)
    listing = list_nvidia_gpus(driver=library.folder)
    assert listing
    assert (listing.tool, listing.driver, [gpu.name for gpu in listing.gpus]) == (
        "NVML",
        "550.54.15",
        ["NVIDIA H200", "NVIDIA H200"],
    )
    assert [gpu.processes for gpu in listing.gpus] == [(), (GpuProcess(os.getpid(), "", 12 * GIB),)]
    assert listing.gpus[1].readings["thermal_throttle_us"] == 0
    with library.silent(fails="NVML: Driver Not Loaded"):
        assert list_nvidia_gpus(driver=library.folder) == not_loaded


def test_a_library_that_hangs_is_not_followed_by_a_tool_that_would_hang_too(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Drivers(tmp_path / "library", "amdsmi")
    monkeypatch.syspath_prepend(library.folder)
    monkeypatch.setenv("PYTHONPATH", str(library.folder))
    with library.silent(hangs=True):
        listing = gpus.list_gpus("amd", tool_timeout_s=0.5)
    assert listing
    assert (listing.gpus, listing.error) == ((), "amdsmi did not answer within 0.5 s")


def test_a_gpu_that_is_no_target_is_told_of_and_not_offered(caplog: pytest.LogCaptureFixture, drivers: Drivers) -> None:
    drivers.cards[1].name = "AMD Radeon RX 7900 XTX"
    drivers.write()
    assert describe_node("n1").count("mi300x") == 1
    assert "GPU 1 is not used: AMD Radeon RX 7900 XTX" in caplog.text
    assert "is no target" in caplog.text


def test_a_tool_that_fails_is_a_check_that_fails(drivers: Drivers) -> None:
    with drivers.silent(fails="the driver is gone"):
        assert failed_checks("amd_tool") == ["rocm-smi ended with exit code 9: the driver is gone"]
        assert describe_node("n1").count("cpu") == 8


def test_a_tool_that_answers_with_nonsense_is_a_check_that_fails(drivers: Drivers) -> None:
    (drivers.folder / "rocm-smi").write_text("#!/bin/sh\necho 'Driver not initialized (amdgpu not found in modules)'\n")
    (check,) = failed_checks("amd_tool")
    assert check.startswith("the output of rocm-smi can't be read: ValueError: no JSON: Driver not initialized (amdgpu")


def test_gpus_that_were_known_stay_while_their_tool_is_silent(drivers: Drivers) -> None:
    known = describe_node("n1")
    with drivers.silent(fails="busy"):
        again = describe_node("n1", known)
    assert again.devices == known.devices
    assert [check.is_ok for check in again.checks if check.name == "amd_tool"] == [False]


def test_a_gpu_that_its_tool_no_longer_lists_is_gone(drivers: Drivers) -> None:
    known = describe_node("n1")
    drivers.cards.pop()
    drivers.write()
    assert describe_node("n1", known).count("mi300x") == 1


def test_a_description_is_looked_at_again_when_it_is_old(drivers: Drivers) -> None:
    description = NodeDescription("n1", refresh_s=0.0)
    drivers.give(0, os.getpid(), 5 * GIB)
    assert description.current(may_refresh=False).devices[8].memory_used_bytes == IDLE_BYTES
    until(lambda: description.current().devices[8].memory_used_bytes == IDLE_BYTES + 5 * GIB, "a look was taken")
    until(lambda: "describe node" not in [thread.name for thread in threading.enumerate()], "it is not being renewed")


def test_describing_again_costs_nothing(drivers: Drivers) -> None:
    description = NodeDescription("n1")
    with drivers.silent(hangs=True):
        began, used_s = time.monotonic(), time.thread_time()
        for _ in range(1000):
            description.current()
        assert time.thread_time() - used_s < 0.5
        assert time.monotonic() - began < TOOL_TIMEOUT_S, "the tool is not waited for"


def test_a_tool_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    child = f"import time; time.sleep(600)  # {tmp_path}"
    tool = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, {str(tmp_path)!r}])"
    started = time.monotonic()
    with pytest.raises(ToolHung, match=r"a-tool did not answer within 0.5 s"):
        run_tool("a-tool", (sys.executable, "-c", tool, str(tmp_path)), 0.5)
    assert time.monotonic() - started < 60, "it is not waited for to the end"
    until(lambda: not living(str(tmp_path)), "nothing of the tool is left")


def test_a_tool_that_cannot_be_started_has_failed(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="a-tool can't be started: No such file"):
        run_tool("a-tool", (str(tmp_path / "a-tool"),))


@pytest.mark.parametrize(
    ("vendor", "environment", "left"),
    [
        ("amd", {}, None),
        ("amd", {"HIP_VISIBLE_DEVICES": "2,5"}, {2, 5}),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,5,6"}, {4, 5, 6}),
        ("amd", {"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "0, 2"}, {4, 6}),
        ("amd", {"CUDA_VISIBLE_DEVICES": "1"}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1"}, {1}),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": ""}, None),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "-1"}, set()),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-7B6F, 0"}, {0, 2}),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-7"}, set()),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "MIG-7b6f6e6c"}, set()),
        ("amd", {"ROCR_VISIBLE_DEVICES": "GPU-7b6f6e6c,3", "HIP_VISIBLE_DEVICES": "0"}, {2}),
        ("amd", {"ROCR_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "GPU-7b6f6e6c"}, set()),
    ],
)
def test_masks_that_a_node_is_started_with_are_kept_to(
    vendor: str, environment: dict[str, str], left: set[int] | None
) -> None:
    gpus = [Gpu(index, "", uuid=uuid) for index, uuid in enumerate(("GPU-71", "", "GPU-7b6f6e6c", "GPU-9"))]
    assert visible_indices(vendor, environment, lambda vendor: GpuListing(vendor, "a tool", tuple(gpus))) == left


@pytest.mark.parametrize(
    ("masks", "left"),
    [
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, {"HIP_VISIBLE_DEVICES": "4,6"}),
        ({"ROCR_VISIBLE_DEVICES": "4"}, {"HIP_VISIBLE_DEVICES": "4"}),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1"}, {"HIP_VISIBLE_DEVICES": "-1"}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_one_mask_is_left_for_amd_and_means_what_all_did(masks: dict[str, str], left: dict[str, str]) -> None:
    environment = {"PATH": "/bin", **masks}
    merge_amd_masks(environment, lambda vendor: None)
    assert environment == {"PATH": "/bin", **left}


def test_gpus_that_a_mask_hides_from_the_node_are_not_offered() -> None:
    listing = GpuListing("amd", "rocm-smi", tuple(Gpu(index, "AMD Instinct MI300X") for index in range(4)))
    offered = gpu_devices([listing], {"HIP_VISIBLE_DEVICES": "1,3"})
    assert [device.index for device in offered] == [1, 3]


def test_a_node_keeps_to_a_mask_of_uuids_and_refuses_one_that_names_no_gpu(
    monkeypatch: pytest.MonkeyPatch, drivers: Drivers
) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", f"GPU-{drivers.cards[1].unique_id:016X}")
    known = describe_node("n1")
    assert [device.index for device in known.devices if device.kind == "mi300x"] == [1]
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "GPU-4711")
    with pytest.raises(BadSetting, match="ROCR_VISIBLE_DEVICES: GPU-4711 is no GPU that rocm-smi lists"):
        describe_node("n1")
    assert [device.kind for device in describe_node("n1", known).devices].count("mi300x") == 0, "it was lost meanwhile"


def test_the_number_of_logical_cpu_devices_can_be_set(monkeypatch: pytest.MonkeyPatch, drivers: Drivers) -> None:
    monkeypatch.setenv("HALOCTL_CPU_DEVICES", "3")
    assert [device.index for device in describe_node("n1").devices if device.kind == "cpu"] == [0, 1, 2]


@pytest.mark.parametrize("value", ["-1", "eight", "1.5"])
def test_a_number_of_devices_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadSetting, match="HALOCTL_CPU_DEVICES"):
        devices.cpu_device_count(value)


def test_a_containers_share_of_processors_and_memory_counts(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert devices.cpu_count(tmp_path) == 1
    assert devices.memory_bytes(tmp_path) == 1 << 30


def test_a_container_without_limits_has_the_whole_machine(tmp_path: Path) -> None:
    unlimited, nowhere = tmp_path, tmp_path / "no-cgroup"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.cpu_count(unlimited) == devices.cpu_count(nowhere)
    assert devices.memory_bytes(unlimited) == devices.memory_bytes(nowhere)
