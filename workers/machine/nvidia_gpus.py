"""NVIDIA's GPUs: by NVML where nvidia-ml-py is installed and works, else by nvidia-smi."""

import csv
import importlib.util
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from workers.machine import driver_tools, nvml_probe
from workers.machine.driver_tools import TOOL_TIMEOUT_S, ToolFailed, ToolHung
from workers.machine.gpu_listing import (
    Gpu,
    GpuListing,
    collect_readings,
    first_listing,
    has_any_bit,
    parse_int,
    parse_word,
    without_empty,
)
from workers.machine.gpu_processes import GpuProcess

TOOLS = "nvidia-ml-py or nvidia-smi"
#: Is there while the kernel has NVIDIA's driver loaded; without it NVML is not worth the start of a process.
DRIVER = Path("/proc/driver/nvidia")
#: Bits of the reasons why clocks are throttled, nvmlClocksEventReason* of nvml.h: HwSlowdown, SwThermalSlowdown,
#: HwThermalSlowdown, HwPowerBrakeSlowdown.
THERMAL_BITS = 0xE8
POWER_BRAKE_BIT = 0x80  #: HwPowerBrakeSlowdown alone, which NVML's thermal times leave out
MIB = 1 << 20

NVML_SETTINGS = {
    "application_clock": "clocks.applications.graphics",
    "max_graphics_clock": "clocks.max.graphics",
    "max_memory_clock": "clocks.max.memory",
}
#: Our names of the probe's readings, and what one of ours is in NVML's unit.
NVML_READINGS = {
    "sm_clock": ("mhz", 1.0),
    "memory_clock": ("memory_mhz", 1.0),
    "power_mw": ("power_w", 1e3),
    "power_cap_mw": ("power_cap_w", 1e3),
    "energy_mj": ("energy_j", 1e3),
    "temperature_c": ("temperature_c", 1.0),
    "thermal_throttle_ns": ("thermal_throttle_us", 1e3),
    "power_throttle_ns": ("power_throttle_us", 1e3),
}

SMI_FORMAT = "--format=csv,noheader,nounits"
SMI_SETTINGS = ("persistence_mode", "clocks.applications.graphics", "clocks.max.graphics", "clocks.max.memory")
SMI_COLUMNS = ("index", "name", "serial", "uuid", "memory.total", "memory.used", "driver_version", *SMI_SETTINGS)
SMI_PROCESS_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_memory")
SMI_READINGS = {
    "clocks.sm": "mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "power.limit": "power_cap_w",
    "temperature.gpu": "temperature_c",
}
SMI_COUNTERS = {
    "clocks_event_reasons_counters.sw_thermal_slowdown": "thermal_throttle_us",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "thermal_throttle_us",
    "clocks_event_reasons_counters.hw_power_brake_slowdown": "thermal_throttle_us",
    "clocks_event_reasons_counters.sw_power_cap": "power_throttle_us",
}
SMI_REASONS = "clocks_throttle_reasons.active"
#: Further columns, tried in turn, since a driver refuses a query with a column that it does not know: new drivers
#: count for how long they throttled, older ones report whether they do, the oldest neither.
SMI_QUERIES = ((*SMI_READINGS, *SMI_COUNTERS), (*SMI_READINGS, SMI_REASONS), tuple(SMI_READINGS))


def list_nvidia_gpus(tool_timeout_s: float = TOOL_TIMEOUT_S, driver: Path = DRIVER) -> GpuListing | None:
    """Return NVIDIA's GPUs; None where neither NVML nor nvidia-smi is there to ask."""
    has_nvml = importlib.util.find_spec("pynvml") and driver.exists()
    sources = [("NVML", partial(_query_nvml, tool_timeout_s))] if has_nvml else []
    if nvidia_smi := driver_tools.find_tool("nvidia-smi"):
        sources.append(("nvidia-smi", partial(_query_nvidia_smi, nvidia_smi, tool_timeout_s)))
    return first_listing("nvidia", sources)


def _query_nvml(timeout_s: float) -> GpuListing:
    return parse_nvml(driver_tools.run_tool("NVML", (sys.executable, "-P", nvml_probe.__file__), timeout_s))


def _query_nvidia_smi(nvidia_smi: str, timeout_s: float) -> GpuListing:
    def query(what: str, columns: tuple[str, ...]) -> str:
        argv = (nvidia_smi, f"--query-{what}={','.join(columns)}", SMI_FORMAT)
        return driver_tools.run_tool("nvidia-smi", argv, timeout_s)

    processes = query("compute-apps", SMI_PROCESS_COLUMNS)
    for further in SMI_QUERIES:
        try:
            return parse_nvidia_smi(query("gpu", (*SMI_COLUMNS, *further)), processes, further)
        except ToolHung:
            raise
        except ToolFailed:
            continue
    return parse_nvidia_smi(query("gpu", SMI_COLUMNS), processes)


def parse_nvml(text: str) -> GpuListing:
    """Parse the output of workers.machine.nvml_probe."""
    report = json.loads(text.strip().splitlines()[-1])
    return GpuListing("nvidia", "NVML", tuple(map(_nvml_gpu, report["gpus"])), report["driver"])


def _nvml_gpu(facts: Mapping[str, Any]) -> Gpu:
    processes, persistence = facts["processes"], facts["persistence_mode"]
    settings = {name: str(facts[key] or "") for key, name in NVML_SETTINGS.items()}
    if persistence is not None:
        settings["persistence_mode"] = "Enabled" if persistence else "Disabled"
    readings = {name: facts[key] / units for key, (name, units) in NVML_READINGS.items() if facts[key] is not None}
    for name, bits in (("is_thermal_throttled", THERMAL_BITS), ("is_power_braked", POWER_BRAKE_BIT)):
        if (is_set := has_any_bit(facts["throttle_reasons"], bits)) is not None:
            readings[name] = is_set
    return Gpu(
        index=facts["index"],
        name=facts["name"] or "",
        serial=_serial(parse_word(facts["serial"]), facts["uuid"] or ""),
        uuid=facts["uuid"] or "",
        memory_bytes=facts["memory_bytes"] or 0,
        used_bytes=facts["used_bytes"],
        processes=None
        if processes is None
        else tuple(GpuProcess(process["pid"], "", process["held_bytes"]) for process in processes),
        settings=without_empty(settings),
        readings=readings,
    )


def parse_nvidia_smi(gpus: str, processes: str, further: tuple[str, ...] = ()) -> GpuListing:
    """Parse nvidia-smi's CSV: of SMI_COLUMNS and `further` ones for GPUs, of SMI_PROCESS_COLUMNS for processes.

    Raises ValueError where no GPU is listed and it does not say that there is none.
    """
    columns = (*SMI_COLUMNS, *further)
    rows = [row for row in csv.reader(gpus.splitlines(), skipinitialspace=True) if len(row) == len(columns)]
    if not rows and "No devices were found" not in gpus:
        raise ValueError(f"no GPU: {gpus.strip()[:100] or 'no output'}")
    by_uuid = _smi_processes(processes)
    cards = [dict(zip(columns, map(parse_word, row), strict=True)) for row in rows]
    driver = cards[0]["driver_version"] if cards else ""
    return GpuListing("nvidia", "nvidia-smi", tuple(_smi_gpu(card, by_uuid) for card in cards), driver)


def _smi_gpu(card: Mapping[str, str], processes: Mapping[str, list[GpuProcess]]) -> Gpu:
    readings = collect_readings(SMI_READINGS | SMI_COUNTERS, card)
    is_throttled = has_any_bit(card.get(SMI_REASONS), THERMAL_BITS)
    return Gpu(
        index=int(card["index"]),
        name=card["name"],
        serial=_serial(card["serial"], card["uuid"]),
        uuid=card["uuid"],
        memory_bytes=(_bytes(card["memory.total"]) or 0),
        used_bytes=_bytes(card["memory.used"]),
        processes=tuple(processes.get(card["uuid"], ())),
        settings=without_empty({name: card[name] for name in SMI_SETTINGS}),
        readings=readings if is_throttled is None else {**readings, "is_thermal_throttled": is_throttled},
    )


def _smi_processes(text: str) -> dict[str, list[GpuProcess]]:
    """Parse the processes that compute, by the UUID of their GPU."""
    by_uuid: dict[str, list[GpuProcess]] = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) >= len(SMI_PROCESS_COLUMNS) and row[1].strip().isdecimal():  # a name may have commas in it
            process = GpuProcess(int(row[1]), ", ".join(row[2:-1]), _bytes(row[-1]))
            by_uuid.setdefault(row[0], []).append(process)
    return by_uuid


def _serial(serial: str, uuid: str) -> str:
    """Return the serial number, or the UUID for a card that has none."""
    return uuid if serial in ("", "0") else serial


def _bytes(mebibytes: str) -> int | None:
    number = parse_int(mebibytes)
    return None if number is None else number * MIB
