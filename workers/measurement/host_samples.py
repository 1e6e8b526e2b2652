"""Samples of a host's state before, during and after a measurement, from the kernel and the drivers' tools."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.task import Device
from workers.machine import gpus
from workers.machine.gpu_listing import GpuListing
from workers.machine.machine_settings import Machine
from workers.machine.rapl import EnergyCounter, read_energy_counters
from workers.measurement.foreign_processes import ForeignProcess

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
IDLE_COLUMNS = (3, 4)  #: of /proc/stat: idle, iowait
COUNTED_COLUMNS = 8  #: guest times, which follow, are part of the first ones


@dataclass(frozen=True)
class HostSnapshot:
    """The host's state before or after a measurement; counters count from when the machine or driver was started."""

    at_s: float
    cpus: int  #: that this process may use
    busy_s: float  #: of these CPUs together, with the time that a hypervisor took
    load: tuple[float, ...] = ()  #: of the last 1, 5 and 15 minutes
    cpu_mhz: float | None = None  #: the mean at this moment
    cpu_thermal_throttles: int | None = None  #: how often CPUs were throttled by heat; None: not reported
    cgroup_throttled_s: float = 0.0  #: for which the container's CPU limit stopped its processes
    listings: tuple[GpuListing, ...] = ()
    readings: Mapping[Device, Mapping[str, float]] = field(default_factory=dict)
    cpu_energy: Mapping[str, EnergyCounter] = field(default_factory=dict)  #: of CPU packages, where readable
    unix_offset_s: float = 0.0  #: Unix time minus `at_s`


@dataclass(frozen=True)
class HostSample:
    """The host's state at a moment of a measurement; counters as in HostSnapshot."""

    at_s: float
    busy_s: float
    own_cpu_s: float | None  #: CPU time of the measured processes, from an arbitrary origin; None: unknown
    cgroup_throttled_s: float = 0.0
    readings: Mapping[Device, Mapping[str, float]] = field(default_factory=dict)  #: of the GPUs that report any
    cpu_energy: Mapping[str, EnergyCounter] = field(default_factory=dict)
    #: By GPU, as far as its processes are reported.
    foreign_processes: Mapping[Device, Sequence[ForeignProcess]] = field(default_factory=dict)


def take_snapshot(devices: Sequence[Device], root: Path = Path("/")) -> HostSnapshot:
    """Read the state of the host and of the GPUs among some devices."""
    machine = Machine(root=root)
    allowed = os.sched_getaffinity(0)
    vendors = sorted({vendor for device in devices if (vendor := gpus.vendor_of(device.kind))})
    listings = tuple(listing for vendor in vendors if (listing := gpus.list_gpus(vendor)))
    readings = {(listing.vendor, gpu.index): gpu.readings for listing in listings for gpu in listing.gpus}
    return HostSnapshot(
        at_s=time.monotonic(),
        cpus=len(allowed),
        busy_s=busy_s("".join(machine.read("/proc/stat")), allowed),
        load=tuple(float(word) for word in "".join(machine.read("/proc/loadavg")).split()[:3]),
        cpu_mhz=mean_mhz(machine),
        cpu_thermal_throttles=cpu_thermal_throttles(machine),
        cgroup_throttled_s=cgroup_throttled_s("".join(machine.read("/sys/fs/cgroup/cpu.stat"))),
        listings=listings,
        readings={device: readings.get((gpus.vendor_of(device.kind) or "", device.index), {}) for device in devices},
        cpu_energy=read_energy_counters(machine),
        unix_offset_s=time.time() - time.monotonic(),
    )


def busy_s(stat: str, allowed: "frozenset[int] | set[int]") -> float:
    """Return for how long some CPUs together have been busy, by the text of /proc/stat.

    Not by psutil.cpu_times(percpu=True): it numbers CPUs by position, which is wrong where some are offline.
    """
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if re.fullmatch(r"cpu\d+", name) and int(name[3:]) in allowed:
            counted = enumerate(columns[:COUNTED_COLUMNS])
            ticks += sum(int(value) for column, value in counted if column not in IDLE_COLUMNS)
    return ticks / TICKS_PER_S


def mean_mhz(machine: Machine) -> float | None:
    """Return the mean clock of the CPUs; None where neither cpufreq nor /proc/cpuinfo has it."""
    khz = machine.read("/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")
    mhz = [float(text) / 1000 for text in khz] or [
        float(text) for text in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", "".join(machine.read("/proc/cpuinfo")), re.M)
    ]
    return round(sum(mhz) / len(mhz), 1) if mhz else None


def cpu_thermal_throttles(machine: Machine) -> int | None:
    """Return how often heat throttled a core or a package since boot; None where the kernel doesn't count it."""
    counts = machine.read("/sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")
    return sum(map(int, counts)) if counts else None


def cgroup_throttled_s(cpu_stat: str) -> float:
    """Return for how long a container's CPU limit stopped its processes, by the text of its cpu.stat."""
    match = re.search(r"^throttled_usec (\d+)$", cpu_stat, re.M)
    return int(match[1]) / 1e6 if match else 0.0
