"""The GPUs of this machine, by vendor."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jobs.targets import TARGETS
from workers.machine import amd_gpus, nvidia_gpus
from workers.machine.driver_tools import TOOL_TIMEOUT_S
from workers.machine.gpu_listing import Gpu, GpuListing

#: Take the time limit for each tool, in seconds.
LISTERS: dict[str, Callable[[float], GpuListing | None]] = {
    "amd": amd_gpus.list_amd_gpus,
    "nvidia": nvidia_gpus.list_nvidia_gpus,
}
TOOLS = {"amd": amd_gpus.TOOLS, "nvidia": nvidia_gpus.TOOLS}
RUNTIMES = {"hip": "amd", "cuda": "nvidia"}  #: vendors by the runtime that reaches their GPUs
PCI_DEVICES = Path("/sys/bus/pci/devices")
PCI_VENDORS = {"amd": "0x1002", "nvidia": "0x10de"}
PCI_COMPUTE = ("0x12", "0x0302", "0x0380")  #: prefixes of classes; a chip that drives a screen is 0x0300


def list_gpus(vendor: str, tool_timeout_s: float = TOOL_TIMEOUT_S) -> GpuListing | None:
    """Return a vendor's GPUs with their readings; None where there are neither tools nor GPUs of theirs."""
    listing = LISTERS[vendor](tool_timeout_s)
    if listing is None and (count := _count_on_pci_bus(vendor)):
        tools = TOOLS[vendor]
        return GpuListing(
            vendor, tools, error=f"found {count} GPUs of {vendor} on the PCI bus; install {tools} to use them"
        )
    return listing


def poll_gpus(vendor: str) -> dict[int, Gpu]:
    """Return by index those of a vendor's GPUs that report readings at this moment."""
    listing = list_gpus(vendor)
    return {gpu.index: gpu for gpu in listing.gpus if gpu.readings} if listing else {}


def vendor_of(kind: str) -> str | None:
    """Return whose GPUs a kind of device are; None for logical CPU devices."""
    return RUNTIMES.get(TARGETS[kind].hal_device) if kind in TARGETS else None


def _count_on_pci_bus(vendor: str, devices: Path = PCI_DEVICES) -> int:
    """Count a vendor's compute GPUs, whether a driver knows them or not."""
    count = 0
    for device in devices.glob("*"):
        with suppress(OSError):
            is_compute = (device / "class").read_text().startswith(PCI_COMPUTE)
            count += is_compute and (device / "vendor").read_text().strip() == PCI_VENDORS[vendor]
    return count
