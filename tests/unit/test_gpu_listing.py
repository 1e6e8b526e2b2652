"""What drivers' tools print, of several releases, and what is read from it."""

import json
from typing import Any

import pytest

from workers.gpu_listing import (
    NVIDIA_COLUMNS,
    Gpu,
    amdsmi_listing,
    kind_of_gpu,
    nvidia_smi_listing,
    rocm_smi_listing,
)
from workers.gpu_users import GpuUser

GIB = 1 << 30

#: Shortened: of `rocm-smi ... --json` with ROCm 5 on MI210, where one of two cards has no readable serial number.
ROCM_5 = {
    "card0": {
        "Unique ID": "0x33d8808f71bf6cd4",
        "Performance Level": "auto",
        "Serial Number": "692224000227",
        "Card series": "Instinct MI210",
        "Card model": "0x0c34",
        "Card vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": "D67301",
        "Valid sclk range": "500Mhz - 1700Mhz",
    },
    "card1": {
        "Unique ID": "0x36e1f2ad03c7e1d2",
        "Performance Level": "perf_determinism",
        "Serial Number": "N/A",
        "Card series": "Aldebaran",
        "Card model": "0x0c34",
        "Card SKU": "D67301",
    },
    "system": {"Driver version": "5.18.13", "PID1905652": "rocfft_offline_, 0, 0, 0, 0"},
}

#: With ROCm 6 on MI300X: other capitals, memory asked for, the kernel's numbers of each GPU.
ROCM_6 = {
    "card0": {
        "Performance Level": "auto",
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": "297013248",
        "Card Series": "AMD Instinct MI300X OAM",
        "Card Model": "0x74a1",
        "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": "M3000100",
        "Subsystem ID": "0x74a1",
        "Device Rev": "0x00",
        "Node ID": "5",
        "GUID": "54554",
        "GFX Version": "gfx942",
        "Unique ID": "0xd6ec5a2e3b1f4c07",
        "Serial Number": "692432000123",
    },
    "card1": {
        "Performance Level": "auto",
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": "12884901888",
        "Card Series": "AMD Instinct MI300X OAM",
        "Node ID": "4",
        "GUID": "46235",
        "Unique ID": "0x1e22c59d5a95b0ed",
        "Serial Number": "692432000124",
    },
    "system": {"Driver version": "6.8.5", "PID4711": "python3, 1, 12587888640, 0, 87", "PID9": "unknown, 1, unknown"},
}

WARNED = (
    "\nWARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
    + json.dumps(ROCM_6)
    + "\n"
)

NVIDIA_550 = """\
0, NVIDIA H100 80GB HBM3, 1652823012345, GPU-7b6f6e6c-0000, 81559, 4, 550.54.15, Enabled, 1980, 1980, 2619
1, NVIDIA H200, [N/A], GPU-7b6f6e6c-1111, 143771, 12288, 550.54.15, Disabled, 1785, 1980, 3201
"""
NVIDIA_580 = (
    "0, NVIDIA H200, 0, GPU-0a5ba9ad, 143771, [N/A], 580.105.06, [Not Supported], "
    "[Requested functionality has been deprecated], 1980, 3201\n"
)
NVIDIA_USERS = """\
GPU-7b6f6e6c-1111, 4711, /usr/bin/python3, 12012
GPU-7b6f6e6c-1111, 4712, a name, with a comma, [N/A]
GPU-7b6f6e6c-1111, [Not Found], [Not Found], [N/A]
"""


def library(**facts: Any) -> dict[str, Any]:
    """What workers.amdsmi_probe prints of a card that tells of nothing, and of what it is given."""
    names = ("memory_bytes", "used_bytes", "performance_level", "driver", "node_id", "gpu_id", "users")
    return {"asic": {}, **dict.fromkeys(names), **facts}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD Instinct MI350X", "mi350x"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", None),
        ("AMD Instinct MI300A", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpus_marketing_name_says_which_target_it_is(name: str, kind: str | None) -> None:
    assert kind_of_gpu(name) == kind


def test_rocm_smi_5_tells_of_names_and_levels_and_of_no_memory() -> None:
    listing = rocm_smi_listing(json.dumps(ROCM_5))
    assert listing.gpus == (
        Gpu(
            0,
            "Instinct MI210 0x0c34 D67301",
            "0x33d8808f71bf6cd4",
            "GPU-33d8808f71bf6cd4",
            settings={"performance_level": "auto"},
        ),
        Gpu(
            1,
            "Aldebaran 0x0c34 D67301",
            "0x36e1f2ad03c7e1d2",
            "GPU-36e1f2ad03c7e1d2",
            settings={"performance_level": "perf_determinism"},
        ),
    )
    assert (listing.driver, listing.users) == ("5.18.13", (GpuUser(1905652, "rocfft_offline_", 0),))


def test_a_full_name_is_found_wherever_a_release_puts_it() -> None:
    (gpu,) = rocm_smi_listing('{"card0": {"Card series": "0x74a1", "Card model": "MI300X"}}').gpus
    assert (gpu.name, gpu.serial) == ("MI300X", "")


def test_rocm_smi_6_tells_of_memory_and_of_processes() -> None:
    listing = rocm_smi_listing(WARNED)
    assert [(gpu.memory_bytes, gpu.used_bytes) for gpu in listing.gpus] == [
        (206141652992, 12 * GIB),
        (206141652992, 297013248),
    ]
    assert listing.users == (GpuUser(4711, "python3", 12587888640), GpuUser(9, "unknown", None))


def test_a_gpu_has_the_index_that_hip_gives_it_by_the_kernels_topology() -> None:
    listing = rocm_smi_listing(WARNED)
    assert [(gpu.index, gpu.serial) for gpu in listing.gpus] == [
        (0, "0x1e22c59d5a95b0ed"),
        (1, "0xd6ec5a2e3b1f4c07"),
    ]


def test_a_card_without_a_unique_id_is_known_by_its_serial_number() -> None:
    text = '{"card0": {"Card Series": "AMD Instinct MI300X", "Serial Number": "692432000123"}}'
    assert rocm_smi_listing(text).gpus[0].serial == "692432000123"


def test_the_library_and_the_tool_name_a_card_alike() -> None:
    asic = {"market_name": "AMD Instinct MI300X", "asic_serial": "0x33D8808F71BF6CD4"}
    (by_library,) = amdsmi_listing(json.dumps([library(asic=asic)])).gpus
    assert by_library.serial == rocm_smi_listing(json.dumps(ROCM_5)).gpus[0].serial


def test_the_library_tells_who_is_on_which_gpu() -> None:
    users = [{"pid": 4711, "name": "python3", "held_bytes": GIB}, {"pid": 12, "name": None, "held_bytes": None}]
    text = json.dumps(
        [library(memory_bytes=192 * GIB, used_bytes=GIB, users=users, performance_level="AMDSMI_DEV_PERF_LEVEL_AUTO")]
    )
    (gpu,) = amdsmi_listing(f"a library's greeting\n{text}\n").gpus
    assert gpu.users == (GpuUser(4711, "python3", GIB), GpuUser(12, "", None))
    assert (gpu.memory_bytes, gpu.used_bytes, gpu.settings) == (192 * GIB, GIB, {"performance_level": "auto"})


def test_a_card_of_which_the_library_tells_nothing_is_still_a_card() -> None:
    assert amdsmi_listing(json.dumps([library()])).gpus == (Gpu(0, ""),)


def test_deterministic_clocks_are_called_the_same_by_library_and_tool() -> None:
    (gpu,) = amdsmi_listing(json.dumps([library(performance_level="AMDSMI_DEV_PERF_LEVEL_DETERMINISM")])).gpus
    assert gpu.settings == {"performance_level": "perf_determinism"}


def test_nvidia_smi_tells_of_cards_and_of_who_is_on_them() -> None:
    first, second = nvidia_smi_listing(NVIDIA_550, NVIDIA_USERS).gpus
    assert (first.index, first.name, first.serial) == (0, "NVIDIA H100 80GB HBM3", "1652823012345")
    assert (first.memory_bytes, first.used_bytes, first.users) == (81559 << 20, 4 << 20, ())
    assert (second.serial, second.settings["persistence_mode"]) == ("GPU-7b6f6e6c-1111", "Disabled")
    assert second.users == (GpuUser(4711, "/usr/bin/python3", 12012 << 20), GpuUser(4712, "a name, with a comma", None))


def test_what_an_nvidia_driver_does_not_tell_is_left_out() -> None:
    listing = nvidia_smi_listing(NVIDIA_580, "")
    (gpu,) = listing.gpus
    assert (gpu.serial, gpu.used_bytes, listing.driver) == ("GPU-0a5ba9ad", None, "580.105.06")
    assert gpu.settings == {"clocks.max.graphics": "1980", "clocks.max.memory": "3201"}


def test_a_driver_without_devices_has_none() -> None:
    assert nvidia_smi_listing("No devices were found\n", "").gpus == ()
    assert rocm_smi_listing('{"system": {"Driver version": "6.8.5"}}').gpus == ()


@pytest.mark.parametrize("text", ["", "ERROR:root:Driver not initialized (amdgpu not found in modules)\n", "{"])
def test_what_is_no_answer_of_rocm_smi_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        rocm_smi_listing(text)


def test_what_is_no_answer_of_nvidia_smi_is_refused() -> None:
    with pytest.raises(ValueError, match="Unable to determine"):
        nvidia_smi_listing("Unable to determine the device handle for GPU0000:1A:00.0: Unknown Error\n", "")


def test_every_column_that_is_asked_for_is_in_the_samples() -> None:
    assert {len(row.split(", ")) for row in (NVIDIA_550 + NVIDIA_580).splitlines()} == {len(NVIDIA_COLUMNS)}
