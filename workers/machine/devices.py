"""This machine as a node of the cluster: its processors, memory and devices."""

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

import psutil

from jobs.errors import BadSetting
from jobs.task import Device, Node
from workers.machine.device_masks import unknown_mask_entries, visible_indices
from workers.machine.gpu_listing import GpuListing, target_of_gpu
from workers.machine.gpus import LISTERS, list_gpus, vendor_of
from workers.machine.machine_settings import Machine, checks

CPU_DEVICES = 8  #: logical ones: threads of one process each, so that TP8 can be tried anywhere
CPU_DEVICES_VARIABLE = "HALOCTL_CPU_DEVICES"
FOREIGN_VARIABLE = "HALOCTL_MAX_FOREIGN_CPU_PERCENT"
CGROUP = Path("/sys/fs/cgroup")
ROCM_VERSION = Path("/opt/rocm/.info/version")
CUDA_VERSION = Path("/usr/local/cuda/version.json")
REFRESH_S = 60.0

logger = logging.getLogger(__name__)


def read_machine() -> Machine:
    """Return what the drivers report now."""
    return Machine(tuple(listing for vendor in LISTERS if (listing := list_gpus(vendor))))


def describe_node(node_id: str, known: Node | None = None) -> Node:
    """Describe this machine as a node of the cluster.

    GPUs whose tool does not answer now are taken from the `known` description. Raises BadSetting for a wrong
    HALOCTL_CPU_DEVICES, and without a `known` description also for a wrong mask or HALOCTL_MAX_FOREIGN_CPU_PERCENT.
    """
    machine = read_machine()
    listings = machine.listings
    silent_vendors = {listing.vendor for listing in listings if listing.error}
    cpu = [Device("cpu", index) for index in range(cpu_device_count(os.environ.get(CPU_DEVICES_VARIABLE)))]
    silent = [device for device in known.devices if vendor_of(device.kind) in silent_vendors] if known else []
    if known is None:
        foreign_cpu_percent(os.environ.get(FOREIGN_VARIABLE))
        _expect_known_mask_entries(listings)
        _log_unused_gpus(listings)
    return Node(
        id=node_id,
        host=socket.gethostname(),
        cpus=cpu_count(),
        memory_bytes=memory_bytes(),
        devices=(*cpu, *silent, *gpu_devices(listings)),
        versions=versions(listings),
        checks=checks(machine),
    )


def _expect_known_mask_entries(listings: Iterable[GpuListing]) -> None:
    """Raise BadSetting for a mask that names no GPU, as far as the drivers' tools answer."""
    for listing in listings:
        for variable, entry in () if listing.error else unknown_mask_entries(listing, os.environ):
            raise BadSetting(
                variable, f"{entry} is no GPU that {listing.tool} lists; give indices, or whole GPUs' UUIDs"
            )


def _log_unused_gpus(listings: Iterable[GpuListing]) -> None:
    for listing in listings:
        if listing.error:
            logger.warning("GPUs of %s are not used: %s", listing.vendor, listing.error)
        for gpu in listing.gpus:
            if not target_of_gpu(gpu.name):
                logger.warning("GPU %d is not used: %s is no target", gpu.index, gpu.name)


class NodeDescription:
    """The description of this node, renewed in the background when it is old."""

    def __init__(self, node_id: str, refresh_s: float = REFRESH_S) -> None:
        """Describe the node, which may take as long as drivers' tools take; raises BadSetting.

        A description older than `refresh_s` is renewed.
        """
        self._refresh_s = refresh_s
        self._node = describe_node(node_id)
        self._described_at = time.monotonic()
        self._lock = threading.Lock()

    def current(self, may_refresh: bool = True) -> Node:
        """Return the last description at once; if it is old, start renewing it for later callers.

        `may_refresh` is False while that would disturb what runs.
        """
        is_old = time.monotonic() - self._described_at > self._refresh_s
        if may_refresh and is_old and self._lock.acquire(blocking=False):
            threading.Thread(target=self._refresh, name="describe node", daemon=True).start()
        return self._node

    def _refresh(self) -> None:
        try:
            self._node = describe_node(self._node.id, self._node)
        finally:
            self._described_at = time.monotonic()
            self._lock.release()


def versions(listings: Iterable[GpuListing]) -> dict[str, str]:
    """Return the versions of the kernel, of the GPUs' drivers and of ROCm and CUDA."""
    by_name = {"kernel": platform.release()}
    for listing in listings:
        if listing.driver:
            by_name[f"{listing.vendor}_driver"] = listing.driver
    with suppress(OSError):
        by_name["rocm"] = ROCM_VERSION.read_text().strip()
    with suppress(OSError, ValueError, LookupError, TypeError):
        by_name["cuda"] = json.loads(CUDA_VERSION.read_text())["cuda"]["version"]
    return by_name


def cpu_device_count(setting: str | None) -> int:
    """Return how many logical CPU devices a node has by HALOCTL_CPU_DEVICES; raises BadSetting."""
    if not setting:
        return CPU_DEVICES
    if not setting.isdecimal():
        raise BadSetting(CPU_DEVICES_VARIABLE, f"{setting!r} is no number of devices, such as {CPU_DEVICES}")
    return int(setting)


def foreign_cpu_percent(setting: str | None) -> float | None:
    """Parse HALOCTL_MAX_FOREIGN_CPU_PERCENT, the share of the node's processors that others may use during a
    measurement; None: as the target says. Raises BadSetting."""
    if not setting:
        return None
    if not re.fullmatch(r"\d+(\.\d+)?", setting):
        raise BadSetting(FOREIGN_VARIABLE, f"{setting!r} is no percentage, such as 10")
    return float(setting)


def cpu_count(cgroup: Path = CGROUP) -> int:
    """Return how many processors this process may use: its affinity, within its container's limit."""
    allowed = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # "max 100000" where there is no limit
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
        return min(allowed, ceil(quota / period))
    return allowed


def memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return how much memory this process may use: the machine's, within its container's limit."""
    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):
        return min(total, int((cgroup / "memory.max").read_text()))
    return total


def gpu_devices(listings: Iterable[GpuListing], environment: Mapping[str, str] = os.environ) -> Iterator[Device]:
    """Yield the GPUs that are targets, without those that masks in the agent's own environment hide from it."""
    by_vendor = {listing.vendor: listing for listing in listings}
    for vendor, listing in by_vendor.items():
        visible = visible_indices(vendor, environment, by_vendor.get)
        for gpu in listing.gpus:
            if (kind := target_of_gpu(gpu.name)) and (visible is None or gpu.index in visible):
                yield Device(kind, gpu.index, gpu.serial, gpu.memory_bytes, gpu.used_bytes)
