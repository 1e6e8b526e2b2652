"""What this machine has: processors, memory and devices."""

import json
import logging
import os
import platform
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path

from jobs.errors import BadSetting
from jobs.task import Device, Node
from workers.device_masks import unknown_words, visible_indices
from workers.gpu_listing import Listing, kind_of_gpu
from workers.gpus import VENDORS, list_gpus, vendor_of
from workers.machine_settings import Machine, checks

CPU_DEVICES = 8  #: logical ones: threads of one process each, so that TP8 can be tried anywhere
CPU_DEVICES_VARIABLE = "HALOCTL_CPU_DEVICES"
FOREIGN_VARIABLE = "HALOCTL_MAX_FOREIGN_CPU_PERCENT"
CGROUP = Path("/sys/fs/cgroup")
ROCM_VERSION = Path("/opt/rocm/.info/version")
CUDA_VERSION = Path("/usr/local/cuda/version.json")
LOOK_AGAIN_S = 60.0  #: a description that is older is taken anew

logger = logging.getLogger(__name__)


def this_machine() -> Machine:
    """What its drivers tell now."""
    return Machine(tuple(listing for vendor in VENDORS if (listing := list_gpus(vendor))))


def describe_node(node_id: str, known: Node | None = None) -> Node:
    """This machine as a node of the cluster; raises BadSetting for a wrong HALOCTL_CPU_DEVICES, or a mask or
    HALOCTL_MAX_FOREIGN_CPU_PERCENT that is wrong when it is first described.

    GPUs whose tool does not answer now are those that were `known`.
    """
    machine = this_machine()
    listings = machine.listings
    silent = {listing.vendor for listing in listings if listing.error}
    cpu = [Device("cpu", index) for index in range(cpu_device_count(os.environ.get(CPU_DEVICES_VARIABLE)))]
    kept = [device for device in known.devices if vendor_of(device.kind) in silent] if known else []
    if known is None:
        foreign_cpu_percent(os.environ.get(FOREIGN_VARIABLE))
        _expect_known_words(listings)
        _tell_of_others(listings)
    return Node(
        id=node_id,
        host=socket.gethostname(),
        cpus=cpu_count(),
        memory_bytes=memory_bytes(),
        devices=(*cpu, *kept, *gpu_devices(listings)),
        versions=versions(listings),
        checks=checks(machine),
    )


def _expect_known_words(listings: Iterable[Listing]) -> None:
    """Raise BadSetting for a mask that can't be kept to; what the driver lists tells that, while it answers."""
    for listing in listings:
        for variable, word in () if listing.error else unknown_words(listing, os.environ):
            raise BadSetting(
                variable, f"{word} is no GPU that {listing.tool} lists; give indices, or whole GPUs' UUIDs"
            )


def _tell_of_others(listings: Iterable[Listing]) -> None:
    for listing in listings:
        if listing.error:
            logger.warning("GPUs of %s are not used: %s", listing.vendor, listing.error)
        for gpu in listing.gpus:
            if not kind_of_gpu(gpu.name):
                logger.warning("GPU %d is a %s, which is no target: it is not used", gpu.index, gpu.name)


class Description:
    """What a node says of itself, looked at again now and then."""

    def __init__(self, node_id: str) -> None:
        """Takes the first look, which may take as long as drivers' tools take; raises BadSetting."""
        self._node = describe_node(node_id)
        self._looked_at = time.monotonic()
        self._lock = threading.Lock()

    def node(self, may_look: bool = True) -> Node:
        """What is known, at once. When that is old, a look is taken meanwhile, for later callers; not if it would
        disturb what runs."""
        if may_look and time.monotonic() - self._looked_at > LOOK_AGAIN_S and self._lock.acquire(blocking=False):
            threading.Thread(target=self._look, name="look at devices", daemon=True).start()
        return self._node

    def _look(self) -> None:
        try:
            self._node = describe_node(self._node.id, self._node)
        finally:
            self._looked_at = time.monotonic()
            self._lock.release()


def versions(listings: Iterable[Listing]) -> dict[str, str]:
    """Of the kernel, the GPUs' drivers and what is installed on top of them."""
    found = {"kernel": platform.release()}
    for listing in listings:
        if listing.driver:
            found[f"{listing.vendor}_driver"] = listing.driver
    with suppress(OSError):
        found["rocm"] = ROCM_VERSION.read_text().strip()
    with suppress(OSError, ValueError, LookupError, TypeError):
        found["cuda"] = json.loads(CUDA_VERSION.read_text())["cuda"]["version"]
    return found


def cpu_device_count(given: str | None) -> int:
    """How many logical CPU devices a node has."""
    if not given:
        return CPU_DEVICES
    if not given.isdecimal():
        raise BadSetting(CPU_DEVICES_VARIABLE, f"{given!r} is no number of devices, such as {CPU_DEVICES}")
    return int(given)


def foreign_cpu_percent(given: str | None) -> float | None:
    """How much of the node's processors others may use during a measurement; None: as its target has it."""
    if not given:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", given):
        raise BadSetting(FOREIGN_VARIABLE, f"{given!r} is no percentage, such as 10")
    return float(given)


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


def gpu_devices(listings: Iterable[Listing], inherited: Mapping[str, str] = os.environ) -> Iterator[Device]:
    """The GPUs that are targets, without those that the agent's own environment hides from it."""
    by_vendor = {listing.vendor: listing for listing in listings}
    for vendor, listing in by_vendor.items():
        visible = visible_indices(vendor, inherited, by_vendor.get)
        for gpu in listing.gpus:
            if (kind := kind_of_gpu(gpu.name)) and (visible is None or gpu.index in visible):
                yield Device(kind, gpu.index, gpu.serial, gpu.memory_bytes, gpu.used_bytes)
