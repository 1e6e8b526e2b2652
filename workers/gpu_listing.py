"""What drivers' tools print of GPUs, read: amdsmi, rocm-smi as JSON, nvidia-smi as CSV."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from jobs.targets import TARGETS
from workers.gpu_users import GpuUser, kfd_users

NVIDIA_COLUMNS = (
    *("index", "name", "serial", "uuid", "memory.total", "memory.used", "driver_version", "persistence_mode"),
    *("clocks.applications.graphics", "clocks.max.graphics", "clocks.max.memory"),
)
#: Of these the first ones are known to all drivers, the rest to some.
NVIDIA_READINGS = {
    "clocks.sm": "mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "power.limit": "power_cap_w",
    "temperature.gpu": "temperature_c",
}
NVIDIA_COUNTERS = {
    "clocks_event_reasons_counters.sw_thermal_slowdown": "heat_us",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "heat_us",
    "clocks_event_reasons_counters.hw_power_brake_slowdown": "heat_us",
    "clocks_event_reasons_counters.sw_power_cap": "power_us",
}
NVIDIA_HEAT = {"clocks_throttle_reasons.active": "is_slowed_by_heat"}
COUNTERS = ("_us", "ticks")  #: ends of readings' names that count from when the driver was loaded
#: Those of amdsmi's metrics.
AMD_READINGS = {
    "current_gfxclks": "mhz",
    "current_gfxclk": "mhz",
    "current_uclk": "memory_mhz",
    "current_socket_power": "power_w",
    "temperature_hotspot": "temperature_c",
    "accumulation_counter": "ticks",
    "prochot_residency_acc": "heat_ticks",
    "socket_thm_residency_acc": "heat_ticks",
    "vr_thm_residency_acc": "heat_ticks",
    "hbm_thm_residency_acc": "heat_ticks",
    "ppt_residency_acc": "power_ticks",
    "indep_throttle_status": "is_slowed_by_heat",
}
#: Bits that say that heat slows a GPU at this moment. NVIDIA's: nvmlClocksEventReason* of nvml.h, HwSlowdown,
#: SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown. AMD's: SMU_THROTTLER_* of the kernel's amdgpu_smu.h, from
#: TEMP_GPU to PROCHOT_GFX.
HEAT_BITS = {"clocks_throttle_reasons.active": 0xE8, "indep_throttle_status": 0xFFFF << 32}
NOT_TOLD = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  #: in place of a chip's bits
ROCM_SMI_READINGS = {
    "sclk clock speed:": "mhz",
    "mclk clock speed:": "memory_mhz",
    "current socket graphics package power (w)": "power_w",
    "average graphics package power (w)": "power_w",
    "max graphics package power (w)": "power_cap_w",
    "temperature (sensor junction) (c)": "temperature_c",
}
NVIDIA_NOW = ("index", "uuid", "memory.used")
NVIDIA_USER_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_memory")
MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver tells of it."""

    index: int  #: that of its runtime's mask (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES)
    name: str
    serial: str = ""
    uuid: str = ""  #: that a mask may name it by
    memory_bytes: int = 0  #: 0: not told
    used_bytes: int | None = None
    users: tuple[GpuUser, ...] | None = None  #: None: not told for each GPU
    settings: Mapping[str, str] = field(default_factory=dict)  #: by the tool's own name of each
    readings: Mapping[str, float] = field(default_factory=dict)  #: clocks, power, heat; and what is counted of them


@dataclass(frozen=True)
class Listing:
    """What a vendor's tool answered."""

    vendor: str
    tool: str
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    users: tuple[GpuUser, ...] = ()  #: of which it is not told what GPU they are on
    error: str = ""  #: why it did not answer


def kind_of_gpu(name: str) -> str | None:
    """The target that a marketing name such as `AMD Instinct MI300X OAM` or `NVIDIA H100 80GB HBM3` is of."""
    return next((target for target in TARGETS if re.search(rf"\b{target}\b", name, re.IGNORECASE)), None)


def amdsmi_listing(text: str) -> Listing:
    """GPUs as workers.amdsmi_probe prints them; a library that is loaded may print something before."""
    cards = json.loads(text.strip().splitlines()[-1])
    gpus = [
        Gpu(
            index=position,
            name=str(card["asic"].get("market_name", "")),
            serial=(serial := _unique_id(card["asic"].get("asic_serial"))),
            uuid=_uuid_of_amd(serial),
            memory_bytes=_number(card["memory_bytes"]) or 0,
            used_bytes=_number(card["used_bytes"]),
            users=_users_of_amd(card["users"], _number(card["gpu_id"])),
            settings=_without_blanks({"performance_level": _level(card["performance_level"])}),
            readings=_readings_of_amd(card.get("metrics") or {}, card.get("power_cap")),
        )
        for position, card in enumerate(cards)
    ]
    driver = next((str(card["driver"]) for card in cards if card["driver"]), "")
    return Listing("amd", "amdsmi", _in_runtime_order(gpus, [_number(card["node_id"]) for card in cards]), driver)


def rocm_smi_listing(text: str) -> Listing:
    """GPUs that rocm-smi lists as JSON; releases differ in how they write the keys, and in which has the full name.

    Its exit code says nothing, and warnings may stand before the answer.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError(f"no JSON: {text.strip()[:100] or 'nothing at all'}")
    answer, _ = json.JSONDecoder().raw_decode(text[start:])
    folded = {name: {key.lower(): str(value) for key, value in facts.items()} for name, facts in answer.items()}
    cards = sorted((int(name[4:]), facts) for name, facts in folded.items() if re.fullmatch(r"card\d+", name))
    gpus = [_card(number, facts) for number, facts in cards]
    system = folded.get("system", {})
    return Listing(
        "amd",
        "rocm-smi",
        _in_runtime_order(gpus, [_number(facts.get("node id")) for _, facts in cards]),
        system.get("driver version", ""),
        tuple(_rocm_smi_users(system)),
    )


def _card(number: int, facts: Mapping[str, str]) -> Gpu:
    names = [facts[key] for key in ("card series", "card model", "card sku") if key in facts]
    return Gpu(
        index=number,
        name=next((name for name in names if kind_of_gpu(name)), " ".join(names)),
        serial=(unique_id := _unique_id(facts.get("unique id"))) or _known(facts.get("serial number")),
        uuid=_uuid_of_amd(unique_id),
        memory_bytes=_number(facts.get("vram total memory (b)")) or 0,
        used_bytes=_number(facts.get("vram total used memory (b)")),
        users=_users_of_amd(None, _number(facts.get("guid"))),
        settings=_without_blanks({"performance_level": _level(facts.get("performance level"))}),
        readings=_readings(ROCM_SMI_READINGS, facts),
    )


def _rocm_smi_users(system: Mapping[str, str]) -> Iterator[GpuUser]:
    """Entries such as `PID4711: python3, 1, 12884901888, 0, 87`: name, number of GPUs, their memory in bytes."""
    for key, value in system.items():
        if found := re.fullmatch(r"pid\s*(\d+)", key):
            name, _, rest = value.partition(",")
            told = [part.strip() for part in rest.split(",")]
            yield GpuUser(int(found[1]), name.strip(), _number(told[1]) if len(told) > 1 else None)


def nvidia_smi_listing(gpus: str, users: str) -> Listing:
    """GPUs that nvidia-smi lists as CSV; the UUID stands in for a serial number where a card has none."""
    by_uuid = nvidia_users(users)
    rows = [row for row in csv.reader(gpus.splitlines(), skipinitialspace=True) if len(row) == len(NVIDIA_COLUMNS)]
    if not rows and "No devices were found" not in gpus:
        raise ValueError(f"no GPU: {gpus.strip()[:100] or 'nothing at all'}")
    cards = [dict(zip(NVIDIA_COLUMNS, (_known(value) for value in row), strict=True)) for row in rows]
    driver = cards[0]["driver_version"] if cards else ""
    return Listing("nvidia", "nvidia-smi", tuple(_nvidia_card(card, by_uuid) for card in cards), driver)


def nvidia_users(text: str) -> dict[str, list[GpuUser]]:
    """The processes that compute on NVIDIA's GPUs, by the GPU's UUID."""
    by_uuid: dict[str, list[GpuUser]] = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) >= 4 and row[1].strip().isdecimal():  # a name may have commas in it
            user = GpuUser(int(row[1]), ", ".join(row[2:-1]), _mebibytes(row[-1]))
            by_uuid.setdefault(row[0], []).append(user)
    return by_uuid


def _mebibytes(text: str) -> int | None:
    number = _number(text)
    return None if number is None else number * MIB


def _nvidia_card(card: Mapping[str, str], users: Mapping[str, list[GpuUser]]) -> Gpu:
    settings = {name: card[name] for name in NVIDIA_COLUMNS if name.startswith(("persistence", "clocks"))}
    return Gpu(
        index=int(card["index"]),
        name=card["name"],
        serial=card["uuid"] if card["serial"] in ("", "0") else card["serial"],
        uuid=card["uuid"],
        memory_bytes=(_number(card["memory.total"]) or 0) * MIB,
        used_bytes=_mebibytes(card["memory.used"]),
        users=tuple(users.get(card["uuid"], ())),
        settings=_without_blanks(settings),
    )


def nvidia_now(names: Mapping[str, str], text: str, users: str = "") -> tuple[Gpu, ...]:
    """NVIDIA's GPUs as they are at a moment; nvidia-smi was asked for NVIDIA_NOW and these names, and for the users."""
    by_uuid, columns = nvidia_users(users), (*NVIDIA_NOW, *names)
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    cards = [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]
    return tuple(
        Gpu(
            index=int(card["index"]),
            name="",
            uuid=card["uuid"],
            used_bytes=_mebibytes(card["memory.used"]),
            users=tuple(by_uuid.get(card["uuid"], ())),
            readings=_readings(names, card),
        )
        for card in cards
    )


def _readings_of_amd(metrics: Mapping[str, Any], power_cap: object) -> dict[str, float]:
    """Releases give the cap in microwatts, and in watts."""
    cap = _real(power_cap)
    caps = {} if not cap else {"power_cap_w": cap / 1e6 if cap > 1e5 else cap}
    return {**_readings(AMD_READINGS, metrics), **caps}


def _readings(names: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, float]:
    """By our names, those that are told; of several by one name the first, or all that they count together."""
    found: dict[str, float] = {}
    for theirs, ours in names.items():
        value = _is_set(told.get(theirs), HEAT_BITS[theirs]) if theirs in HEAT_BITS else _real(told.get(theirs))
        if value is not None and (ours not in found or ours.endswith(COUNTERS)):
            found[ours] = found.get(ours, 0.0) + value
    return found


def _is_set(value: object, bits: int) -> float | None:
    """Whether one of some bits is set, as 1 or 0; None where the chip has none of them."""
    number = _number(value)
    return None if number is None or number in NOT_TOLD else float(bool(number & bits))


def _real(value: object) -> float | None:
    """A number as tools write it, with its unit, in parentheses, or one for each chip; None for whatever is none."""
    if isinstance(value, list):
        told = [one for one in map(_real, value) if one is not None]
        return sum(told) / len(told) if told else None
    found = re.fullmatch(r"\(?(\d+(?:\.\d+)?)\s*[A-Za-z]*\)?", _known(value))
    return float(found[1]) if found else None


def _in_runtime_order(gpus: Sequence[Gpu], node_ids: Sequence[int | None]) -> tuple[Gpu, ...]:
    """With the indices that HIP gives them: it counts the nodes of the kernel's topology, tools count PCI addresses.

    See https://github.com/pytorch/pytorch/issues/131901.
    """
    known = [node_id for node_id in node_ids if node_id is not None]
    if len(set(known)) < len(gpus):
        return tuple(gpus)
    places = {node_id: index for index, node_id in enumerate(sorted(known))}
    found = [replace(gpu, index=places[node_id]) for gpu, node_id in zip(gpus, known, strict=True)]
    return tuple(sorted(found, key=attrgetter("index")))


def _users_of_amd(told: list[dict[str, Any]] | None, gpu_id: int | None) -> tuple[GpuUser, ...] | None:
    """Who is on an AMD GPU: as the library tells, else as the kernel does."""
    if told is not None:
        found = [(_number(user["pid"]), str(user["name"] or ""), _number(user["held_bytes"])) for user in told]
        return tuple(GpuUser(pid, name, held) for pid, name, held in found if pid)
    return None if gpu_id is None else (kfd_users([gpu_id]) or {}).get(gpu_id)


def _unique_id(text: object) -> str:
    """A chip's own number, written the same whichever tool told of it; nothing where it is none."""
    try:
        number = int(str(text), 16)
    except ValueError:
        return ""
    return f"0x{number:016x}" if number else ""


def _uuid_of_amd(unique_id: str) -> str:
    """The chip's number, as ROCR_VISIBLE_DEVICES has it."""
    return f"GPU-{unique_id.removeprefix('0x')}" if unique_id else ""


def _level(text: object) -> str:
    """AMDSMI_DEV_PERF_LEVEL_DETERMINISM and perf_determinism are the same."""
    level = _known(text).lower().removeprefix("amdsmi_dev_perf_level_")
    return "perf_determinism" if level == "determinism" else level


def _known(text: object) -> str:
    """A tool's word; nothing for N/A, [N/A], [Not Supported] and the like."""
    word = "" if text is None else str(text).strip()
    return "" if word.startswith("[") or word.upper() in ("N/A", "NONE", "UNKNOWN") else word


def _number(value: object) -> int | None:
    """A whole number as tools write them; None for whatever is none."""
    with suppress(ValueError):
        return int(_known(value), 0)
    return None


def _without_blanks(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value}
