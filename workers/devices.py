"""What this machine has: processors, memory and devices."""

import csv
import importlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from jobs.errors import BadSetting
from jobs.targets import TARGETS
from jobs.task import Device, Node

CPU_DEVICES = 8  #: logical ones: threads of one process each, so that TP8 can be tried anywhere
CPU_DEVICES_VARIABLE = "HALOCTL_CPU_DEVICES"
CGROUP = Path("/sys/fs/cgroup")
TOOL_TIMEOUT_S = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Gpu:
    """A GPU as its driver names it."""

    index: int
    name: str
    serial: str


def describe_node(node_id: str) -> Node:
    """This machine as a node of the cluster; raises BadSetting for a wrong HALOCTL_CPU_DEVICES."""
    cpu = [Device("cpu", index) for index in range(cpu_device_count(os.environ.get(CPU_DEVICES_VARIABLE)))]
    return Node(
        id=node_id,
        host=socket.gethostname(),
        cpus=cpu_count(),
        memory_bytes=memory_bytes(),
        devices=(*cpu, *gpu_devices([*amd_gpus(), *nvidia_gpus()])),
    )


def cpu_device_count(given: str | None) -> int:
    """How many logical CPU devices a node has."""
    if not given:
        return CPU_DEVICES
    if not given.isdecimal():
        raise BadSetting(CPU_DEVICES_VARIABLE, f"{given!r} is no number of devices, such as {CPU_DEVICES}")
    return int(given)


def cpu_count(cgroup: Path = CGROUP) -> int:
    """Processors that this process may use: its affinity, and its container's share."""
    allowed = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # "max 100000" where there is no limit
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
        return min(allowed, ceil(quota / period))
    return allowed


def memory_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that this process may use: the machine's, and its container's share."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        return min(installed, int((cgroup / "memory.max").read_text()))
    return installed


def gpu_devices(gpus: Iterable[Gpu]) -> Iterator[Device]:
    """The GPUs that are targets; others are told of and left alone."""
    for gpu in gpus:
        if kind := kind_of_gpu(gpu.name):
            yield Device(kind, gpu.index, gpu.serial)
        else:
            logger.warning("GPU %d is a %s, which is no target: it is not used", gpu.index, gpu.name)


def kind_of_gpu(name: str) -> str | None:
    """The target that a marketing name such as `AMD Instinct MI300X OAM` or `NVIDIA H100 80GB HBM3` is of."""
    return next((target for target in TARGETS if re.search(rf"\b{target}\b", name, re.IGNORECASE)), None)


def amd_gpus() -> list[Gpu]:
    """AMD's GPUs, by its Python library if that is there, else by its tool."""
    try:
        return _amd_gpus_by_library()
    except ImportError:
        return amd_gpus_in(_output_of("rocm-smi", "--showproductname", "--showserial", "--json"))


def _amd_gpus_by_library() -> list[Gpu]:
    """See https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html."""
    amdsmi = importlib.import_module("amdsmi")
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        logger.warning("amdsmi finds no driver: %s", error)
        return []
    try:
        facts = [amdsmi.amdsmi_get_gpu_asic_info(handle) for handle in amdsmi.amdsmi_get_processor_handles()]
        return [Gpu(index, fact["market_name"], str(fact["asic_serial"])) for index, fact in enumerate(facts)]
    finally:
        amdsmi.amdsmi_shut_down()


def amd_gpus_in(text: str) -> list[Gpu]:
    """GPUs that rocm-smi lists as JSON; releases differ in how they write the keys, and in which has the full name."""
    start = text.find("{")  # warnings may stand before it
    cards = json.loads(text[start:]) if start >= 0 else {}
    found = []
    for card, facts in cards.items():
        if number := re.fullmatch(r"card(\d+)", card):
            known = {key.lower(): value for key, value in facts.items()}
            names = [known[key] for key in ("card series", "card model", "card sku") if key in known]
            name = next((name for name in names if kind_of_gpu(name)), " ".join(names))
            found.append(Gpu(int(number[1]), name, known.get("serial number", "")))
    return sorted(found)


def nvidia_gpus() -> list[Gpu]:
    """NVIDIA's GPUs; the UUID stands in for a serial number where a card has none."""
    return nvidia_gpus_in(_output_of("nvidia-smi", "--query-gpu=index,name,serial,uuid", "--format=csv,noheader"))


def nvidia_gpus_in(text: str) -> list[Gpu]:
    """GPUs that nvidia-smi lists as CSV."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [
        Gpu(int(index), name, uuid if serial.startswith("[") or serial == "0" else serial)
        for index, name, serial, uuid in (row for row in rows if len(row) == 4)
    ]


def _output_of(tool: str, *flags: str) -> str:
    """What a driver's tool prints; nothing where it is not installed."""
    path = shutil.which(tool)
    if path is None:
        return ""
    try:
        return subprocess.run([path, *flags], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("%s does not answer, so its GPUs are not used: %s", tool, error)
        return ""
