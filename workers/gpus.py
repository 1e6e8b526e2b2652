"""The GPUs of this machine, as their drivers' tools tell of them."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from jobs.targets import TARGETS
from workers import amdsmi_probe, driver_tools
from workers.driver_tools import ToolFailed, ToolHung
from workers.gpu_listing import (
    NVIDIA_COLUMNS,
    NVIDIA_COUNTERS,
    NVIDIA_HEAT,
    NVIDIA_NOW,
    NVIDIA_READINGS,
    NVIDIA_USER_COLUMNS,
    Gpu,
    Listing,
    amdsmi_listing,
    nvidia_now,
    nvidia_smi_listing,
    rocm_smi_listing,
)

ROCM_SMI_FLAGS = (
    *("--showproductname", "--showserial", "--showuniqueid", "--showmeminfo", "vram", "--showperflevel"),
    *("--showclocks", "--showpower", "--showmaxpower", "--showtemp"),
    *("--showdriverversion", "--showpids", "--json"),
)
NVIDIA_FORMAT = "--format=csv,noheader,nounits"
#: Tried in turn: new drivers count for how long heat slowed a GPU, older ones tell whether it does, the oldest neither.
NVIDIA_QUESTIONS = ({**NVIDIA_READINGS, **NVIDIA_COUNTERS}, {**NVIDIA_READINGS, **NVIDIA_HEAT}, NVIDIA_READINGS)
PCI_DEVICES = Path("/sys/bus/pci/devices")
PCI_VENDORS = {"amd": "0x1002", "nvidia": "0x10de"}
PCI_COMPUTE = ("0x12", "0x0302", "0x0380")  #: beginnings of classes; a chip that drives a screen is 0x0300
RUNTIMES = {"hip": "amd", "cuda": "nvidia"}  #: vendors by the runtime that reaches their GPUs


def list_gpus(vendor: str) -> Listing | None:
    """A vendor's GPUs; None where there is neither a tool of theirs nor a GPU."""
    listing = VENDORS[vendor]()
    if listing is None and (found := _seen_on_the_bus(vendor)):
        tools = TOOLS[vendor]
        return Listing(vendor, tools, error=f"{found} GPUs of {vendor} are in this machine, and no {tools} to ask")
    return listing


def vendor_of(kind: str) -> str | None:
    """Whose GPUs a kind of device are; None for logical devices."""
    return RUNTIMES.get(TARGETS[kind].hal_device) if kind in TARGETS else None


Ways = Sequence[tuple[str, Callable[[], "Listing"]]]  #: tools, each with how it is asked


def _amd() -> Listing | None:
    """By AMD's Python library where that is installed and works, else by rocm-smi."""
    ways = [("amdsmi", _by_amdsmi)] if importlib.util.find_spec("amdsmi") else []
    if rocm_smi := driver_tools.find("rocm-smi"):
        ways.append(("rocm-smi", partial(_by_rocm_smi, rocm_smi)))
    return _first_answer("amd", ways)


def _by_amdsmi() -> Listing:
    return amdsmi_listing(driver_tools.output_of("amdsmi", (sys.executable, "-P", amdsmi_probe.__file__)))


def _by_rocm_smi(rocm_smi: str) -> Listing:
    return rocm_smi_listing(driver_tools.output_of("rocm-smi", (rocm_smi, *ROCM_SMI_FLAGS)))


def _nvidia() -> Listing | None:
    nvidia_smi = driver_tools.find("nvidia-smi")
    return _first_answer("nvidia", [("nvidia-smi", partial(_by_nvidia_smi, nvidia_smi))] if nvidia_smi else [])


def _by_nvidia_smi(nvidia_smi: str) -> Listing:
    return nvidia_smi_listing(_nvidia_cards(nvidia_smi, NVIDIA_COLUMNS), _nvidia_users(nvidia_smi))


def _nvidia_cards(nvidia_smi: str, columns: Sequence[str]) -> str:
    query = f"--query-gpu={','.join(columns)}"
    return driver_tools.output_of("nvidia-smi", (nvidia_smi, query, NVIDIA_FORMAT))


def _nvidia_users(nvidia_smi: str) -> str:
    query = f"--query-compute-apps={','.join(NVIDIA_USER_COLUMNS)}"
    return driver_tools.output_of("nvidia-smi", (nvidia_smi, query, NVIDIA_FORMAT))


def with_readings(listing: Listing) -> Listing:
    """A listing with its GPUs' clocks, power and heat; AMD's tools tell them in it, NVIDIA's is asked once more."""
    if listing.vendor != "nvidia" or listing.error:
        return listing
    found = {gpu.uuid: gpu.readings for gpu in _nvidia_now(with_users=False)}
    return replace(listing, gpus=tuple(replace(gpu, readings=found.get(gpu.uuid, {})) for gpu in listing.gpus))


def now(vendor: str) -> dict[int, Gpu]:
    """A vendor's GPUs by index, with the readings, the memory in use and the users of this moment, by as few questions
    as it takes; none that has no readings."""
    listing = list_gpus(vendor) if vendor != "nvidia" else None
    found = _nvidia_now(with_users=True) if vendor == "nvidia" else listing.gpus if listing else ()
    return {gpu.index: gpu for gpu in found if gpu.readings}


def _nvidia_now(*, with_users: bool) -> Sequence[Gpu]:
    """A driver that does not know one of the names tells nothing."""
    nvidia_smi = driver_tools.find("nvidia-smi")
    for names in NVIDIA_QUESTIONS if nvidia_smi else ():
        with suppress(ToolFailed, ValueError):
            cards = _nvidia_cards(str(nvidia_smi), (*NVIDIA_NOW, *names))
            return nvidia_now(names, cards, _nvidia_users(str(nvidia_smi)) if with_users else "")
    return ()


VENDORS: dict[str, Callable[[], Listing | None]] = {"amd": _amd, "nvidia": _nvidia}
TOOLS = {"amd": "amdsmi or rocm-smi", "nvidia": "nvidia-smi"}


def _first_answer(vendor: str, ways: Ways) -> Listing | None:
    """What the first tool that works answers; that none does is an answer too."""
    errors = []
    for tool, ask in ways:
        try:
            return ask()
        except ToolHung as error:  # the others would hang in the same driver
            return Listing(vendor, tool, error=str(error))
        except ToolFailed as error:
            errors.append(str(error))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            errors.append(f"what {tool} prints can't be read: {type(error).__name__}: {error}")
    return Listing(vendor, ways[-1][0], error="; ".join(errors)) if errors else None


def _seen_on_the_bus(vendor: str, devices: Path = PCI_DEVICES) -> int:
    """How many compute GPUs of a vendor there are, whether a driver knows them or not."""
    found = 0
    for device in devices.glob("*"):
        with suppress(OSError):
            is_compute = (device / "class").read_text().startswith(PCI_COMPUTE)
            found += is_compute and (device / "vendor").read_text().strip() == PCI_VENDORS[vendor]
    return found
