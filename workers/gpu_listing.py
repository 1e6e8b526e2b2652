"""What drivers' tools print of GPUs, read: amdsmi, rocm-smi as JSON, nvidia-smi as CSV."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from jobs.targets import TARGETS

NVIDIA_COLUMNS = (
    *("index", "name", "serial", "uuid", "memory.total", "memory.used", "driver_version", "persistence_mode"),
    *("clocks.applications.graphics", "clocks.max.graphics", "clocks.max.memory"),
)
NVIDIA_USER_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_memory")
KFD_PROCESSES = Path("/sys/class/kfd/kfd/proc")
MIB = 1 << 20


@dataclass(frozen=True)
class GpuUser:
    """A process on a GPU."""

    pid: int
    name: str = ""
    held_bytes: int | None = None  #: of the GPU's memory; None: not told


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver tells of it."""

    index: int  #: that of its runtime's mask (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES)
    name: str
    serial: str = ""
    memory_bytes: int = 0  #: 0: not told
    used_bytes: int | None = None
    users: tuple[GpuUser, ...] | None = None  #: None: not told for each GPU
    settings: Mapping[str, str] = field(default_factory=dict)  #: by the tool's own name of each


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
            serial=_unique_id(card["asic"].get("asic_serial")),
            memory_bytes=_number(card["memory_bytes"]) or 0,
            used_bytes=_number(card["used_bytes"]),
            users=_users_of_amd(card["users"], _number(card["gpu_id"])),
            settings=_without_blanks({"performance_level": _level(card["performance_level"])}),
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
        serial=_unique_id(facts.get("unique id")) or _known(facts.get("serial number")),
        memory_bytes=_number(facts.get("vram total memory (b)")) or 0,
        used_bytes=_number(facts.get("vram total used memory (b)")),
        users=_users_of_amd(None, _number(facts.get("guid"))),
        settings=_without_blanks({"performance_level": _level(facts.get("performance level"))}),
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
    by_uuid: dict[str, list[GpuUser]] = {}
    for row in csv.reader(users.splitlines(), skipinitialspace=True):
        if len(row) >= 4 and row[1].strip().isdecimal():  # a name may have commas in it
            held = _number(row[-1])
            user = GpuUser(int(row[1]), ", ".join(row[2:-1]), None if held is None else held * MIB)
            by_uuid.setdefault(row[0], []).append(user)
    rows = [row for row in csv.reader(gpus.splitlines(), skipinitialspace=True) if len(row) == len(NVIDIA_COLUMNS)]
    if not rows and "No devices were found" not in gpus:
        raise ValueError(f"no GPU: {gpus.strip()[:100] or 'nothing at all'}")
    cards = [dict(zip(NVIDIA_COLUMNS, (_known(value) for value in row), strict=True)) for row in rows]
    driver = cards[0]["driver_version"] if cards else ""
    return Listing("nvidia", "nvidia-smi", tuple(_nvidia_card(card, by_uuid) for card in cards), driver)


def _nvidia_card(card: Mapping[str, str], users: Mapping[str, list[GpuUser]]) -> Gpu:
    used = _number(card["memory.used"])
    settings = {name: card[name] for name in NVIDIA_COLUMNS if name.startswith(("persistence", "clocks"))}
    return Gpu(
        index=int(card["index"]),
        name=card["name"],
        serial=card["uuid"] if card["serial"] in ("", "0") else card["serial"],
        memory_bytes=(_number(card["memory.total"]) or 0) * MIB,
        used_bytes=None if used is None else used * MIB,
        users=tuple(users.get(card["uuid"], ())),
        settings=_without_blanks(settings),
    )


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
    return None if gpu_id is None else kfd_users(gpu_id)


def kfd_users(gpu_id: int, processes: Path = KFD_PROCESSES) -> tuple[GpuUser, ...] | None:
    """The processes that hold memory of one GPU, by the kernel's own books; None where it keeps none."""
    if not processes.is_dir():
        return None
    found = []
    for file in processes.glob(f"*/vram_{gpu_id}"):
        with suppress(OSError, ValueError):  # it ended meanwhile
            found.append(GpuUser(int(file.parent.name), "", int(file.read_text())))
    return tuple(found)


def _unique_id(text: object) -> str:
    """A chip's own number, written the same whichever tool told of it; nothing where it is none."""
    try:
        number = int(str(text), 16)
    except ValueError:
        return ""
    return f"0x{number:016x}" if number else ""


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
