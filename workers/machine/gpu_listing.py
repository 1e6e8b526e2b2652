"""GPUs as their drivers report them, and how the values that drivers' tools print are read."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from jobs.targets import TARGETS
from workers.machine.driver_tools import ToolFailed, ToolHung
from workers.machine.gpu_processes import GpuProcess

#: Ends of the names of readings that count up from when the driver was loaded.
COUNTER_SUFFIXES = ("_us", "ticks", "energy_j")
#: A driver's bit mask with this value is not supported by the chip.
UNSUPPORTED_MASKS = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver reports it."""

    index: int  #: in its runtime's mask (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES)
    name: str
    serial: str = ""
    uuid: str = ""  #: by which a mask may name it
    memory_bytes: int = 0  #: 0: unknown
    used_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None  #: None: not reported per GPU
    settings: Mapping[str, str] = field(default_factory=dict)  #: by nvidia-smi's or rocm-smi's name of each
    readings: Mapping[str, float] = field(default_factory=dict)  #: clocks, power, temperature, throttling


@dataclass(frozen=True)
class GpuListing:
    """What a vendor's tool reports."""

    vendor: str
    tool: str
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    unassigned_processes: tuple[GpuProcess, ...] = ()  #: reported without the GPU that they are on
    error: str = ""  #: why there is no report


def target_of_gpu(name: str) -> str | None:
    """Return the target of a marketing name such as `AMD Instinct MI300X OAM` or `NVIDIA H100 80GB HBM3`."""
    return next((target for target in TARGETS if re.search(rf"\b{target}\b", name, re.IGNORECASE)), None)


def first_listing(vendor: str, sources: Sequence[tuple[str, Callable[[], GpuListing]]]) -> GpuListing | None:
    """Query tools in order until one works; return a listing with their errors if none does, None without tools.

    After a tool that hangs no other is tried: it would hang in the same driver.
    """
    errors = []
    for tool, query in sources:
        try:
            return query()
        except ToolHung as error:
            return GpuListing(vendor, tool, error=str(error))
        except ToolFailed as error:
            errors.append(str(error))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            errors.append(f"the output of {tool} can't be read: {type(error).__name__}: {error}")
    return GpuListing(vendor, sources[-1][0], error="; ".join(errors)) if errors else None


def collect_readings(names: Mapping[str, str], values: Mapping[str, object]) -> dict[str, float]:
    """Translate a tool's names of readings to ours; of several with one name, counters are summed, else the first wins.

    Values that are missing, or no numbers, are left out.
    """
    readings: dict[str, float] = {}
    for tool_name, name in names.items():
        value = parse_number(values.get(tool_name))
        if value is not None and (name not in readings or name.endswith(COUNTER_SUFFIXES)):
            readings[name] = readings.get(name, 0.0) + value
    return readings


def has_any_bit(mask: object, bits: int) -> float | None:
    """Return 1 or 0: whether any of `bits` is set; None where the chip does not support the mask."""
    number = parse_int(mask)
    return None if number is None or number in UNSUPPORTED_MASKS else float(bool(number & bits))


def parse_number(value: object) -> float | None:
    """Parse a number that may have a unit, be in parentheses, or be a list with one for each chip (its mean)."""
    if isinstance(value, list):
        numbers = [number for number in map(parse_number, value) if number is not None]
        return sum(numbers) / len(numbers) if numbers else None
    match = re.fullmatch(r"\(?(\d+(?:\.\d+)?)\s*[A-Za-z]*\)?", parse_word(value))
    return float(match[1]) if match else None


def parse_int(value: object) -> int | None:
    """Parse a whole number, decimal or with a prefix such as 0x; None for anything else."""
    with suppress(ValueError):
        return int(parse_word(value), 0)
    return None


def parse_word(value: object) -> str:
    """Return a tool's word; empty for N/A, [N/A], [Not Supported] and the like."""
    word = "" if value is None else str(value).strip()
    return "" if word.startswith("[") or word.upper() in ("N/A", "NONE", "UNKNOWN") else word


def without_empty(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a tool reports."""
    return {name: value for name, value in settings.items() if value}
