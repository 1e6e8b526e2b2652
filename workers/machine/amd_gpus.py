"""AMD's GPUs: by AMD's Python library where it is installed and works, else by rocm-smi."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from workers.machine import amdsmi_probe, driver_tools
from workers.machine.driver_tools import TOOL_TIMEOUT_S
from workers.machine.gpu_listing import (
    Gpu,
    GpuListing,
    collect_readings,
    first_listing,
    has_any_bit,
    parse_int,
    parse_number,
    parse_word,
    target_of_gpu,
    without_empty,
)
from workers.machine.gpu_processes import GpuProcess, kfd_processes

TOOLS = "amdsmi or rocm-smi"
ROCM_SMI_FLAGS = (
    *("--showproductname", "--showserial", "--showuniqueid", "--showmeminfo", "vram", "--showperflevel"),
    *("--showclocks", "--showpower", "--showmaxpower", "--showtemp"),
    *("--showdriverversion", "--showpids", "--json"),
)
#: Our names of amdsmi's metrics.
AMDSMI_READINGS = {
    "current_gfxclks": "mhz",
    "current_gfxclk": "mhz",
    "current_uclk": "memory_mhz",
    "current_socket_power": "power_w",
    "temperature_hotspot": "temperature_c",
    "accumulation_counter": "ticks",
    "prochot_residency_acc": "thermal_throttle_ticks",
    "socket_thm_residency_acc": "thermal_throttle_ticks",
    "vr_thm_residency_acc": "thermal_throttle_ticks",
    "hbm_thm_residency_acc": "thermal_throttle_ticks",
    "ppt_residency_acc": "power_throttle_ticks",
}
#: In `indep_throttle_status`: SMU_THROTTLER_* of the kernel's amdgpu_smu.h, from TEMP_GPU to PROCHOT_GFX.
THERMAL_BITS = 0xFFFF << 32
ROCM_SMI_READINGS = {
    "sclk clock speed:": "mhz",
    "mclk clock speed:": "memory_mhz",
    "current socket graphics package power (w)": "power_w",
    "average graphics package power (w)": "power_w",
    "max graphics package power (w)": "power_cap_w",
    "temperature (sensor junction) (c)": "temperature_c",
}


def list_amd_gpus(tool_timeout_s: float = TOOL_TIMEOUT_S) -> GpuListing | None:
    """Return AMD's GPUs; None where neither the library nor the tool is installed."""
    sources = [("amdsmi", partial(_query_amdsmi, tool_timeout_s))] if importlib.util.find_spec("amdsmi") else []
    if rocm_smi := driver_tools.find_tool("rocm-smi"):
        sources.append(("rocm-smi", partial(_query_rocm_smi, rocm_smi, tool_timeout_s)))
    return first_listing("amd", sources)


def _query_amdsmi(timeout_s: float) -> GpuListing:
    return parse_amdsmi(driver_tools.run_tool("amdsmi", (sys.executable, "-P", amdsmi_probe.__file__), timeout_s))


def _query_rocm_smi(rocm_smi: str, timeout_s: float) -> GpuListing:
    return parse_rocm_smi(driver_tools.run_tool("rocm-smi", (rocm_smi, *ROCM_SMI_FLAGS), timeout_s))


def parse_amdsmi(text: str) -> GpuListing:
    """Parse the output of workers.machine.amdsmi_probe; the library may print something before it as it is loaded."""
    cards = json.loads(text.strip().splitlines()[-1])
    gpus = [
        Gpu(
            index=position,
            name=str(card["asic"].get("market_name", "")),
            serial=(serial := _unique_id(card["asic"].get("asic_serial"))),
            uuid=_uuid(serial),
            memory_bytes=parse_int(card["memory_bytes"]) or 0,
            used_bytes=parse_int(card["used_bytes"]),
            processes=_processes(card["processes"], parse_int(card["gpu_id"])),
            settings=without_empty({"performance_level": _performance_level(card["performance_level"])}),
            readings={
                **_amdsmi_readings(card.get("metrics") or {}, card.get("power_cap")),
                **_amdsmi_energy(card.get("energy") or {}),
            },
        )
        for position, card in enumerate(cards)
    ]
    driver = next((str(card["driver"]) for card in cards if card["driver"]), "")
    return GpuListing("amd", "amdsmi", _in_hip_order(gpus, [parse_int(card["node_id"]) for card in cards]), driver)


def _amdsmi_readings(metrics: Mapping[str, Any], power_cap: object) -> dict[str, float]:
    readings = collect_readings(AMDSMI_READINGS, metrics)
    if cap := parse_number(power_cap):
        readings["power_cap_w"] = cap / 1e6 if cap > 1e5 else cap  # some releases report microwatts, some watts
    is_throttled = has_any_bit(metrics.get("indep_throttle_status"), THERMAL_BITS)
    return readings if is_throttled is None else {**readings, "is_thermal_throttled": is_throttled}


def _amdsmi_energy(count: Mapping[str, Any]) -> dict[str, float]:
    """Return the energy counter, which counts steps of some microjoules; releases before 6.2 call it `power`."""
    steps, step_uj = (parse_number(count.get(key)) for key in ("energy_accumulator", "counter_resolution"))
    steps = parse_number(count.get("power")) if steps is None else steps
    return {"energy_j": steps * step_uj / 1e6} if steps and step_uj else {}


def parse_rocm_smi(text: str) -> GpuListing:
    """Parse rocm-smi's JSON; releases differ in how they write the keys, and in which key has the full name.

    Its exit code says nothing, and warnings may precede the JSON. Raises ValueError where there is none.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError(f"no JSON: {text.strip()[:100] or 'no output'}")
    report, _ = json.JSONDecoder().raw_decode(text[start:])
    folded = {name: {key.lower(): str(value) for key, value in facts.items()} for name, facts in report.items()}
    cards = sorted((int(name[4:]), facts) for name, facts in folded.items() if re.fullmatch(r"card\d+", name))
    system = folded.get("system", {})
    return GpuListing(
        "amd",
        "rocm-smi",
        _in_hip_order(
            [_rocm_smi_gpu(number, facts) for number, facts in cards],
            [parse_int(facts.get("node id")) for _, facts in cards],
        ),
        system.get("driver version", ""),
        tuple(_rocm_smi_processes(system)),
    )


def _rocm_smi_gpu(number: int, facts: Mapping[str, str]) -> Gpu:
    names = [facts[key] for key in ("card series", "card model", "card sku") if key in facts]
    return Gpu(
        index=number,
        name=next((name for name in names if target_of_gpu(name)), " ".join(names)),
        serial=(unique_id := _unique_id(facts.get("unique id"))) or parse_word(facts.get("serial number")),
        uuid=_uuid(unique_id),
        memory_bytes=parse_int(facts.get("vram total memory (b)")) or 0,
        used_bytes=parse_int(facts.get("vram total used memory (b)")),
        processes=_processes(None, parse_int(facts.get("guid"))),
        settings=without_empty({"performance_level": _performance_level(facts.get("performance level"))}),
        readings=collect_readings(ROCM_SMI_READINGS, facts),
    )


def _rocm_smi_processes(system: Mapping[str, str]) -> Iterator[GpuProcess]:
    """Parse entries such as `PID4711: python3, 1, 12884901888, 0, 87`: name, number of GPUs, their memory in bytes."""
    for key, value in system.items():
        if match := re.fullmatch(r"pid\s*(\d+)", key):
            name, _, rest = value.partition(",")
            columns = [column.strip() for column in rest.split(",")]
            yield GpuProcess(int(match[1]), name.strip(), parse_int(columns[1]) if len(columns) > 1 else None)


def _in_hip_order(gpus: Sequence[Gpu], node_ids: Sequence[int | None]) -> tuple[Gpu, ...]:
    """Give GPUs HIP's indices: it counts the nodes of the kernel's topology, while tools count PCI addresses.

    See https://github.com/pytorch/pytorch/issues/131901.
    """
    known = [node_id for node_id in node_ids if node_id is not None]
    if len(set(known)) < len(gpus):
        return tuple(gpus)
    indices = {node_id: index for index, node_id in enumerate(sorted(known))}
    numbered = [replace(gpu, index=indices[node_id]) for gpu, node_id in zip(gpus, known, strict=True)]
    return tuple(sorted(numbered, key=attrgetter("index")))


def _processes(reported: list[dict[str, Any]] | None, gpu_id: int | None) -> tuple[GpuProcess, ...] | None:
    """Return a GPU's processes as the library reports them, else as the kernel does; None: neither does."""
    if reported is not None:
        facts = [(parse_int(row["pid"]), str(row["name"] or ""), parse_int(row["held_bytes"])) for row in reported]
        return tuple(GpuProcess(pid, name, held_bytes) for pid, name, held_bytes in facts if pid)
    return None if gpu_id is None else (kfd_processes([gpu_id]) or {}).get(gpu_id)


def _unique_id(text: object) -> str:
    """Return a chip's own number, spelled the same whichever tool reports it; empty if it has none."""
    try:
        number = int(str(text), 16)
    except ValueError:
        return ""
    return f"0x{number:016x}" if number else ""


def _uuid(unique_id: str) -> str:
    """Return a chip's number as ROCR_VISIBLE_DEVICES spells it."""
    return f"GPU-{unique_id.removeprefix('0x')}" if unique_id else ""


def _performance_level(text: object) -> str:
    """Return rocm-smi's spelling: the library calls perf_determinism AMDSMI_DEV_PERF_LEVEL_DETERMINISM."""
    level = parse_word(text).lower().removeprefix("amdsmi_dev_perf_level_")
    return "perf_determinism" if level == "determinism" else level
