"""What a machine is like at a moment before, during or after a measurement, as the kernel and drivers' tools tell."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.task import Device
from workers import gpus
from workers.gpu_listing import Listing
from workers.machine_settings import Machine
from workers.strangers import Stranger

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  #: columns of /proc/stat: idle, waiting for a disk
COUNTED = 8  #: columns; those after it are in the first ones already


@dataclass(frozen=True)
class Look:
    """What was found at one moment; counters count since the machine or the driver was started."""

    at_s: float
    cpus: int  #: that this process may use
    busy_s: float  #: of those, all together; also what a hypervisor took of them
    load: tuple[float, ...] = ()  #: of the last 1, 5 and 15 minutes
    cpu_mhz: float | None = None  #: at this moment, on average
    cpu_throttles: int | None = None  #: times that heat slowed a processor; None: not told
    held_back_s: float = 0.0  #: by the limit of the container
    listings: tuple[Listing, ...] = ()
    readings: Mapping[Device, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """What was found while a measurement went on; counters as in Look."""

    at_s: float
    busy_s: float
    own_cpu_s: float | None  #: that the measured processes have computed, from wherever it is counted; None: not told
    held_back_s: float = 0.0
    readings: Mapping[Device, Mapping[str, float]] = field(default_factory=dict)  #: of those GPUs that told any
    strangers: Mapping[Device, Sequence[Stranger]] = field(default_factory=dict)  #: on those of which it was told


def look(devices: Sequence[Device], root: Path = Path("/")) -> Look:
    """Take a look at the machine and at some of its GPUs."""
    machine = Machine(root=root)
    allowed = os.sched_getaffinity(0)
    vendors = sorted({vendor for device in devices if (vendor := gpus.vendor_of(device.kind))})
    listings = tuple(gpus.with_readings(found) for vendor in vendors if (found := gpus.list_gpus(vendor)))
    readings = {(one.vendor, gpu.index): gpu.readings for one in listings for gpu in one.gpus}
    return Look(
        at_s=time.monotonic(),
        cpus=len(allowed),
        busy_s=busy_s("".join(machine.read("/proc/stat")), allowed),
        load=tuple(float(word) for word in "".join(machine.read("/proc/loadavg")).split()[:3]),
        cpu_mhz=mean_mhz(machine),
        cpu_throttles=cpu_throttles(machine),
        held_back_s=held_back_s("".join(machine.read("/sys/fs/cgroup/cpu.stat"))),
        listings=listings,
        readings={device: readings.get((gpus.vendor_of(device.kind) or "", device.index), {}) for device in devices},
    )


def busy_s(stat: str, allowed: "frozenset[int] | set[int]") -> float:
    """How long some processors have been busy, all together, as /proc/stat tells."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if re.fullmatch(r"cpu\d+", name) and int(name[3:]) in allowed:
            ticks += sum(int(value) for place, value in enumerate(columns[:COUNTED]) if place not in IDLE)
    return ticks / TICKS_PER_S


def mean_mhz(machine: Machine) -> float | None:
    """The processors' clock; None where nobody tells it."""
    khz = [float(text) for text in machine.read("/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")]
    told = [one / 1000 for one in khz] or [
        float(found) for found in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", "".join(machine.read("/proc/cpuinfo")), re.M)
    ]
    return round(sum(told) / len(told), 1) if told else None


def cpu_throttles(machine: Machine) -> int | None:
    """How often heat slowed a core or a whole processor since the machine was started."""
    told = machine.read("/sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")
    return sum(map(int, told)) if told else None


def held_back_s(cpu_stat: str) -> float:
    """How long a container's processes had to wait because its share of the processors was used up."""
    found = re.search(r"^throttled_usec (\d+)$", cpu_stat, re.M)
    return int(found[1]) / 1e6 if found else 0.0
