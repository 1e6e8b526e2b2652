"""What drivers' tools print, of several releases, and what is read from it."""

import json
from typing import Any

import pytest

from workers.machine.amd_gpus import parse_amdsmi, parse_rocm_smi
from workers.machine.gpu_listing import Gpu, target_of_gpu
from workers.machine.gpu_processes import GpuProcess
from workers.machine.nvidia_gpus import SMI_COLUMNS, parse_nvidia_smi, parse_nvml

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


#: What workers.machine.nvml_probe prints of an H100 on which a program runs.
NVML: dict[str, Any] = {
    "index": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "serial": "1652823012345",
    "uuid": "GPU-7b6f6e6c-0000",
    "memory_bytes": 81559 << 20,
    "used_bytes": 4 << 20,
    "persistence_mode": 1,
    "application_clock": 1980,
    "max_graphics_clock": 1980,
    "max_memory_clock": 2619,
    "sm_clock": 1755,
    "memory_clock": 2619,
    "power_mw": 612_400,
    "power_cap_mw": 700_000,
    "energy_mj": 91_403_239,
    "temperature_c": 71,
    "throttle_reasons": 0x4,
    "thermal_throttle_ns": 200_000,
    "power_throttle_ns": 91_403_239_000,
    "processes": [{"pid": 4711, "held_bytes": GIB}, {"pid": 12, "held_bytes": None}],
}


def nvml(**facts: Any) -> Gpu:
    """What is read of a GPU of which the probe prints NVML, but for some facts."""
    text = json.dumps({"driver": "550.54.15", "gpus": [{**NVML, **facts}]})
    (gpu,) = parse_nvml(text).gpus
    return gpu


def library(**facts: Any) -> dict[str, Any]:
    """What workers.machine.amdsmi_probe prints of a card that tells of nothing, and of what it is given."""
    names = ("memory_bytes", "used_bytes", "performance_level", "driver", "node_id", "gpu_id", "processes")
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
    assert target_of_gpu(name) == kind


def test_rocm_smi_5_tells_of_names_and_levels_and_of_no_memory() -> None:
    listing = parse_rocm_smi(json.dumps(ROCM_5))
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
    assert (listing.driver, listing.unassigned_processes) == ("5.18.13", (GpuProcess(1905652, "rocfft_offline_", 0),))


def test_a_full_name_is_found_wherever_a_release_puts_it() -> None:
    (gpu,) = parse_rocm_smi('{"card0": {"Card series": "0x74a1", "Card model": "MI300X"}}').gpus
    assert (gpu.name, gpu.serial) == ("MI300X", "")


def test_rocm_smi_6_tells_of_memory_and_of_processes() -> None:
    listing = parse_rocm_smi(WARNED)
    assert [(gpu.memory_bytes, gpu.used_bytes) for gpu in listing.gpus] == [
        (206141652992, 12 * GIB),
        (206141652992, 297013248),
    ]
    assert listing.unassigned_processes == (GpuProcess(4711, "python3", 12587888640), GpuProcess(9, "unknown", None))


def test_a_gpu_has_the_index_that_hip_gives_it_by_the_kernels_topology() -> None:
    listing = parse_rocm_smi(WARNED)
    assert [(gpu.index, gpu.serial) for gpu in listing.gpus] == [
        (0, "0x1e22c59d5a95b0ed"),
        (1, "0xd6ec5a2e3b1f4c07"),
    ]


def test_a_card_without_a_unique_id_is_known_by_its_serial_number() -> None:
    text = '{"card0": {"Card Series": "AMD Instinct MI300X", "Serial Number": "692432000123"}}'
    assert parse_rocm_smi(text).gpus[0].serial == "692432000123"


def test_the_library_and_the_tool_name_a_card_alike() -> None:
    asic = {"market_name": "AMD Instinct MI300X", "asic_serial": "0x33D8808F71BF6CD4"}
    (by_library,) = parse_amdsmi(json.dumps([library(asic=asic)])).gpus
    assert by_library.serial == parse_rocm_smi(json.dumps(ROCM_5)).gpus[0].serial


def test_the_library_tells_who_is_on_which_gpu() -> None:
    processes = [{"pid": 4711, "name": "python3", "held_bytes": GIB}, {"pid": 12, "name": None, "held_bytes": None}]
    text = json.dumps(
        [
            library(
                memory_bytes=192 * GIB,
                used_bytes=GIB,
                processes=processes,
                performance_level="AMDSMI_DEV_PERF_LEVEL_AUTO",
            )
        ]
    )
    (gpu,) = parse_amdsmi(f"a library's greeting\n{text}\n").gpus
    assert gpu.processes == (GpuProcess(4711, "python3", GIB), GpuProcess(12, "", None))
    assert (gpu.memory_bytes, gpu.used_bytes, gpu.settings) == (192 * GIB, GIB, {"performance_level": "auto"})


def test_a_card_of_which_the_library_tells_nothing_is_still_a_card() -> None:
    assert parse_amdsmi(json.dumps([library()])).gpus == (Gpu(0, ""),)


def test_deterministic_clocks_are_called_the_same_by_library_and_tool() -> None:
    (gpu,) = parse_amdsmi(json.dumps([library(performance_level="AMDSMI_DEV_PERF_LEVEL_DETERMINISM")])).gpus
    assert gpu.settings == {"performance_level": "perf_determinism"}


def test_nvidia_smi_tells_of_cards_and_of_who_is_on_them() -> None:
    first, second = parse_nvidia_smi(NVIDIA_550, NVIDIA_USERS).gpus
    assert (first.index, first.name, first.serial) == (0, "NVIDIA H100 80GB HBM3", "1652823012345")
    assert (first.memory_bytes, first.used_bytes, first.processes) == (81559 << 20, 4 << 20, ())
    assert (second.serial, second.settings["persistence_mode"]) == ("GPU-7b6f6e6c-1111", "Disabled")
    assert second.processes == (
        GpuProcess(4711, "/usr/bin/python3", 12012 << 20),
        GpuProcess(4712, "a name, with a comma", None),
    )


def test_what_an_nvidia_driver_does_not_tell_is_left_out() -> None:
    listing = parse_nvidia_smi(NVIDIA_580, "")
    (gpu,) = listing.gpus
    assert (gpu.serial, gpu.used_bytes, listing.driver) == ("GPU-0a5ba9ad", None, "580.105.06")
    assert gpu.settings == {"clocks.max.graphics": "1980", "clocks.max.memory": "3201"}


def test_a_driver_without_devices_has_none() -> None:
    assert parse_nvidia_smi("No devices were found\n", "").gpus == ()
    assert parse_rocm_smi('{"system": {"Driver version": "6.8.5"}}').gpus == ()


@pytest.mark.parametrize("text", ["", "ERROR:root:Driver not initialized (amdgpu not found in modules)\n", "{"])
def test_what_is_no_answer_of_rocm_smi_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rocm_smi(text)


def test_what_is_no_answer_of_nvidia_smi_is_refused() -> None:
    with pytest.raises(ValueError, match="Unable to determine"):
        parse_nvidia_smi("Unable to determine the device handle for GPU0000:1A:00.0: Unknown Error\n", "")


def test_every_column_that_is_asked_for_is_in_the_samples() -> None:
    assert {len(row.split(", ")) for row in (NVIDIA_550 + NVIDIA_580).splitlines()} == {len(SMI_COLUMNS)}


def test_nvml_reports_a_cards_state_in_nvidia_smis_words() -> None:
    gpu, (by_tool, _) = nvml(), parse_nvidia_smi(NVIDIA_550, NVIDIA_USERS).gpus
    assert (gpu.name, gpu.serial, gpu.uuid) == (by_tool.name, by_tool.serial, by_tool.uuid)
    assert (gpu.memory_bytes, gpu.used_bytes, gpu.settings) == (
        by_tool.memory_bytes,
        by_tool.used_bytes,
        by_tool.settings,
    )
    assert gpu.processes == (GpuProcess(4711, "", GIB), GpuProcess(12, "", None))
    assert gpu.readings == {
        "mhz": 1755,
        "memory_mhz": 2619,
        "power_w": 612.4,
        "power_cap_w": 700,
        "energy_j": 91_403.239,
        "temperature_c": 71,
        "thermal_throttle_us": 200,
        "power_throttle_us": 91_403_239,
        "is_thermal_throttled": 0,
        "is_power_braked": 0,
    }


def test_what_nvml_does_not_report_is_left_out() -> None:
    facts = {name: None for name in NVML if name not in ("index", "name", "uuid")}
    gpu = nvml(**facts)
    assert gpu == Gpu(0, NVML["name"], NVML["uuid"], NVML["uuid"])


def test_nvml_says_which_throttling_is_by_heat_and_which_by_the_power_brake() -> None:
    flags = [nvml(throttle_reasons=bits).readings for bits in (0x40, 0x80)]
    assert [(readings["is_thermal_throttled"], readings["is_power_braked"]) for readings in flags] == [(1, 0), (1, 1)]
